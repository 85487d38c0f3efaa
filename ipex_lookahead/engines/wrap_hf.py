"""An engine around a model that is already loaded: by transformers, or by ipex-llm."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.engines.ipex_llm.engine import IpexLlmEngine, is_ipex_llm_model
from ipex_lookahead.engines.torch.engine import TorchEngine


def wrap_hf(hf_model: Any, **options: Any) -> TorchEngine:
    """The engine that runs a causal language model of transformers as it is, where it lies.

    Args:
        hf_model: quantised or not, by whatever library.
        **options: of :class:`TorchEngine`.

    Raises:
        UnsupportedModelError: no transformers model, or one whose past cannot be rolled back (recurrent states).
    """
    kind = IpexLlmEngine if is_ipex_llm_model(hf_model) else TorchEngine
    facts = {"chosen": f"{kind.name}: it was given a loaded model"}
    return kind(hf_model, low_bit=_quantised_by(hf_model), facts=facts, **options)


def _quantised_by(hf_model: Any) -> str:
    """What the library that quantised a model calls its method, "" for a model that none has quantised."""
    config = getattr(hf_model, "config", None)
    found = getattr(config, "quantization_config", None)
    if found is None:
        return str(getattr(config, "bigdl_transformers_low_bit", ""))  # ipex-llm's
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    return str(getattr(method, "value", method) or type(found).__name__)
