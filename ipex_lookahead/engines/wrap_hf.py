"""Engines for models that transformers or ipex-llm has loaded."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.engines.ipex_llm.engine import IpexLlmEngine, is_ipex_llm_model
from ipex_lookahead.engines.torch.engine import TorchEngine


def wrap_hf(hf_model: Any, **options: Any) -> TorchEngine:
    """Return an engine that runs a causal language model of transformers without changing or moving it.

    Args:
        hf_model: the model, which any library may have quantized.
        **options: of :class:`TorchEngine`.

    Raises:
        UnsupportedModelError: no transformers model, or one with recurrent states, which cannot be rolled back.
    """
    kind = IpexLlmEngine if is_ipex_llm_model(hf_model) else TorchEngine
    facts = {"chosen": f"{kind.name}: it was given a loaded model"}
    return kind(hf_model, low_bit=_quantized_by(hf_model), facts=facts, **options)


def _quantized_by(hf_model: Any) -> str:
    """Return the name of the method that quantized a model; "" for a model that is not quantized."""
    config = getattr(hf_model, "config", None)
    found = getattr(config, "quantization_config", None)
    if found is None:
        return str(getattr(config, "bigdl_transformers_low_bit", ""))  # ipex-llm's
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    return str(getattr(method, "value", method) or type(found).__name__)
