"""An engine for a model that is already there: loaded by transformers or ipex-llm, quantised by whatever library."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.engines.ipex_llm.engine import IpexLlmEngine, is_ipex_llm_model
from ipex_lookahead.engines.torch.engine import TorchEngine


def engine_of(
    hf_model: Any, *, deterministic: bool = False, threads: int | None = None, max_context: int | None = None
) -> TorchEngine:
    """A transformers model as an engine, used as it is: neither copied nor changed, on the device where it lies.

    Args:
        hf_model: a causal language model, quantised or not.
        deterministic: as in :class:`TorchEngine`, and so are the others.
        threads: threads of torch's operators while it runs; None = as torch is set.
        max_context: positions a sequence may have; None = by the model's config.

    Raises:
        UnsupportedModelError: no transformers model, or one whose past cannot be rolled back (recurrent states).
    """
    kind = IpexLlmEngine if is_ipex_llm_model(hf_model) else TorchEngine
    return kind(
        hf_model,
        deterministic=deterministic,
        low_bit=low_bit_of(hf_model),
        threads=threads,
        max_context=max_context,
        facts={"chosen": f"{kind.name}: it was given a loaded model"},
    )


def low_bit_of(hf_model: Any) -> str:
    """What the library that quantised a model calls its method, "" for a model that none has quantised."""
    config = getattr(hf_model, "config", None)
    found = getattr(config, "quantization_config", None)
    if found is None:
        return str(getattr(config, "bigdl_transformers_low_bit", ""))  # ipex-llm's
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    return str(getattr(method, "value", method) or type(found).__name__)
