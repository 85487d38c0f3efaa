"""A model and its draft model: equal vocabularies, and shared noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.sampling import Processor, Sampler
from ipex_lookahead.drafting.draft_model import DraftChoice, most_likely
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.errors import EngineError, InputError


def engine_of(draft: Any) -> Engine:
    """Return a draft model's engine, or a new one around a model of transformers. Raises InputError for others."""
    if hasattr(draft, "engine"):
        engine: Engine = draft.engine
        return engine
    if hasattr(draft, "config") and hasattr(draft, "forward"):
        from ipex_lookahead.engines.wrap_hf import wrap_hf

        return wrap_hf(draft)
    raise InputError(
        f"draft_model is a {type(draft).__module__}.{type(draft).__qualname__};"
        " load it with ipex_lookahead.AutoModelForCausalLM.from_pretrained"
    )


def check_vocabulary(target: Any, draft: Any, engine: Engine) -> None:
    """Raise InputError where the vocabularies of two models differ.

    Args:
        target: its ``engine`` and ``tokenizer`` are looked at.
        draft: its tokenizer's vocabulary is compared, where both have a tokenizer.
        engine: the draft model's; the sizes are compared.
    """
    instead = "a draft model needs the target's vocabulary: take a smaller model of the same family"
    ours, theirs = target.engine.vocab_size, engine.vocab_size
    if ours != theirs:
        raise InputError(f"the draft model has {theirs} token ids and the target {ours}; {instead}")
    its_tokenizer = getattr(draft, "tokenizer", None)
    if target.tokenizer is None or its_tokenizer is None or target.tokenizer is its_tokenizer:
        return
    known, other = target.tokenizer.get_vocab(), its_tokenizer.get_vocab()
    if known != other:
        token = min(t for t in known.keys() | other.keys() if known.get(t) != other.get(t))
        raise InputError(
            f"the draft model has a different tokenizer: {token!r} is {other.get(token, 'unknown')} there and"
            f" {known.get(token, 'unknown')} in the target's; {instead}"
        )


def shared_choice(processors: Sequence[Processor], sampler: Sampler | None) -> DraftChoice:
    """Return a choice from the draft model's logits with the target's processors and noise.

    The noise of a position largely decides which token is chosen there, so the two models agree far more often than two
    independent draws would. The estimate of that probability includes the noise: it is the softmax of
    ``logit / temperature + gumbel`` at the chosen token. (Measured on a four-bit copy of SmolLM2 at temperature 0.8:
    72 % of the tokens agree; this estimate's mean is 0.71, that of the token's own probability 0.60.)

    Args:
        processors: called with hypothetical prefixes, so they must have no state.
        sampler: the target's sampler of the same sequence; None is greedy.
    """

    def choose(logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int64]) -> tuple[int, float] | None:
        for processor in processors:
            logits = processor(tokens, logits)
        if sampler is None:
            return most_likely(logits, tokens) if logits.max() > -np.inf else None
        try:
            token = sampler(np.ascontiguousarray(logits), len(tokens))
        except (InputError, EngineError):  # if the target gets here, it raises the same error
            return None
        return token, sampler.lead(logits, len(tokens), token)

    return choose
