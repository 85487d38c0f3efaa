"""Configs for transformers, made of ours, which are checked. ``foreign.py`` has those of other families."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.checkpoints import Checkpoint
from ipex_lookahead.formats import dequantize


def transformers_config(config: dict[str, Any]) -> Any:
    """Our checked config as transformers' own class, which pipelines and streamers ask for."""
    from ipex_lookahead.compat import llama_config

    values = {k: v for k, v in config.items() if k not in ("model_type", "rope_theta", "rope_scaling")}
    scaling = dict(config.get("rope_scaling") or {"rope_type": "default"})
    if scaling["rope_type"] == "freq_factors":  # no name for these in transformers; the engine has the numbers
        scaling = {"rope_type": "default"}
    return llama_config(values, scaling, config["rope_theta"])


def generation_config(checkpoint: Checkpoint) -> Any:
    """The checkpoint's defaults for ``generate``."""
    from transformers import GenerationConfig

    tokens = {k: v for k, v in checkpoint.config.items() if k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return GenerationConfig(**{**tokens, **checkpoint.generation_config})


def inline_rope_factors(checkpoint: Checkpoint) -> None:
    """A GGUF file keeps Llama 3's frequency divisors in a tensor of its own; the architecture wants them as numbers."""
    scaling = checkpoint.config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "freq_factors" and "factors" not in scaling:
        scaling["factors"] = [float(f) for f in dequantize(checkpoint.read("rope_freqs"))]
