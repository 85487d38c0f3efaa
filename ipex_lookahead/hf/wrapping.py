"""Lookahead for a model that is already there: loaded by transformers or ipex-llm, quantized by whatever library."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from ipex_lookahead.engines.wrap_hf import wrap_hf
from ipex_lookahead.hf.model import LookaheadModelForCausalLM


def wrap(
    hf_model: Any,
    tokenizer: Any = None,
    *,
    deterministic: bool = False,
    threads: int | None = None,
    max_context: int | None = None,
) -> LookaheadModelForCausalLM:
    """Add lookahead decoding to a causal language model that transformers has loaded.

    The model is neither copied nor changed, and stays on its device. Its own ``generate`` still works.

    Args:
        hf_model: a transformers causal language model, quantized or not. A model of this package is returned unchanged.
        tokenizer: its tokenizer; needed for ``stop_strings`` and saved by ``save_low_bit``.
        deterministic: run all forwards in one shape, so that lookahead does not change the text; slower.
        threads: number of torch's threads during generation; None = torch's current setting.
        max_context: maximum number of positions of a sequence; None = from the model's config.

    Raises:
        UnsupportedModelError: not a transformers model, or its cache cannot be rolled back (recurrent states).

    Example: ``wrap(AutoModelForCausalLM.from_pretrained("gpt2")).generate(input_ids, lookahead="auto")``.
    """
    if isinstance(hf_model, LookaheadModelForCausalLM):
        return hf_model
    options: dict[str, Any] = {"deterministic": deterministic, "threads": threads, "max_context": max_context}
    engine = wrap_hf(hf_model, **options)
    return LookaheadModelForCausalLM(
        hf_model.config,
        engine,
        generation_config=copy.deepcopy(getattr(hf_model, "generation_config", None)),
        low_bit=engine.low_bit,
        tokenizer=tokenizer,
        source=getattr(hf_model, "name_or_path", None) or None,
        origin=partial(wrap, hf_model, tokenizer, **options),
    )
