"""Configs for transformers: from ours, which is checked, and from other families' ``config.json``, which is not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipex_lookahead.checkpoints import Checkpoint
from ipex_lookahead.checkpoints.low_bit import MARKER
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.formats import dequantize

_DROPPED = ("auto_map", "custom_pipelines", "attn_implementation", "experts_implementation", MARKER)
"""Keys that make transformers import code or choose kernels, and our own."""


def transformers_config(config: dict[str, Any]) -> Any:
    """Our checked config as transformers' own class, which pipelines and streamers ask for."""
    from ipex_lookahead.compat import llama_config

    values = {k: v for k, v in config.items() if k not in ("model_type", "rope_theta", "rope_scaling")}
    scaling = dict(config.get("rope_scaling") or {"rope_type": "default"})
    if scaling["rope_type"] == "freq_factors":  # no name for these in transformers; the engine has the numbers
        scaling = {"rope_type": "default"}
    return llama_config(values, scaling, config["rope_theta"])


def generation_defaults(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint's defaults for ``generate``, by the names of transformers' GenerationConfig."""
    tokens = {k: v for k, v in checkpoint.config.items() if k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {**tokens, **checkpoint.generation_config}


def inline_rope_factors(checkpoint: Checkpoint) -> None:
    """A GGUF file keeps Llama 3's frequency divisors in a tensor of its own; the architecture wants them as numbers."""
    scaling = checkpoint.config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "freq_factors" and "factors" not in scaling:
        scaling["factors"] = [float(f) for f in dequantize(checkpoint.read("rope_freqs"))]


def foreign_config(raw: Mapping[str, Any], path: Path) -> tuple[Any, dict[str, Any]]:
    """A config that only transformers knows, without the keys that would make it import code.

    Returns:
        transformers' config, and the plain values it was made of.

    Raises:
        UnsupportedModelError: transformers does not know the family or what the config holds, or the checkpoint is
            quantised by another library.
    """
    from transformers import AutoConfig

    if raw.get("quantization_config") is not None:
        raise UnsupportedModelError(
            f"{path}: the checkpoint is quantised already (quantization_config), in a format that is not read",
            hint="load it with transformers and put lookahead on it with ipex_lookahead.wrap(model)",
        )
    plain = {
        key: value
        for key, value in raw.items()
        if key not in _DROPPED and not key.startswith("_") and not key.endswith("_internal")
    }
    values = {key: value for key, value in plain.items() if key != "model_type"}
    try:
        config = AutoConfig.for_model(plain["model_type"], **values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UnsupportedModelError(
            f"{path}: model type {plain['model_type']!r} is known neither to this package nor to transformers: {said}",
            hint="upgrade transformers, if a newer release has it",
        ) from None
    return config, plain
