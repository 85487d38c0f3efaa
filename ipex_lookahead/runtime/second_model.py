"""What a model and a second one that drafts for it have to do with each other: vocabularies, and the shared noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.decoding.sampling import Processor, Sampler
from ipex_lookahead.drafting.draft_model import most_likely
from ipex_lookahead.engines.api import Cache, Engine
from ipex_lookahead.errors import EngineError, InputError


def engine_of(draft: Any) -> Engine:
    """A draft model's engine: its own, or a new one around a model that transformers has loaded; else InputError."""
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
    """Raise InputError where the token ids of two models do not mean the same.

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
            f"the draft model's tokenizer is another one: {token!r} is {other.get(token, 'unknown')} there and"
            f" {known.get(token, 'unknown')} in the target's; {instead}"
        )


class DraftKeys:
    """A draft model's keys and values of one sequence, within a memory that other sequences share and later ones find.

    Args:
        engine: the draft model's.
        memory: for this engine's caches alone.
        key: whose beginnings are found.
    """

    def __init__(self, engine: Engine, memory: PrefixCache, key: str = "") -> None:
        self._engine = engine
        self._memory = memory
        self._key = key
        self._pages: list[int] = []

    def take(self, tokens: npt.NDArray[np.int64]) -> Cache:
        """See :class:`~ipex_lookahead.drafting.draft_model.Keys`."""
        self._release()
        found = self._memory.take(tokens, self._key)
        if found is None:
            return self._engine.new_cache()
        cache, self._pages = found
        return cache

    def room(self, positions: int) -> bool:
        """See :class:`~ipex_lookahead.drafting.draft_model.Keys`."""
        return self._memory.extend(self._pages, positions)

    def keep(self, tokens: npt.NDArray[np.int64], cache: Cache, *, ended: bool) -> None:
        """See :class:`~ipex_lookahead.drafting.draft_model.Keys`."""
        if self._pages:
            self._memory.keep(tokens, cache, self._pages, self._key, goes_on=not ended)
        if ended:
            self._release()

    def _release(self) -> None:
        self._memory.release(self._pages)
        self._pages = []


class SharedChoice:
    """Chooses from the draft model's logits as the target would from its own: same processors, same noise.

    The noise of a position says most about what is chosen there, so the two agree far more often than two independent
    draws would, and the estimate of how often must count it in: it is the softmax of ``logit / temperature + gumbel``
    at the token chosen, which says by how much it leads. (Measured on a four-bit copy of SmolLM2 at temperature 0.8:
    72 % of the tokens agree; this estimate's mean is 0.71, that of the token's own probability 0.60.)

    Args:
        processors: called on each hypothetical prefix, so they may keep no state.
        sampler: the target's sampler of the same sequence; None is greedy.
    """

    def __init__(self, processors: Sequence[Processor], sampler: Sampler | None) -> None:
        self._processors = processors
        self._sampler = sampler

    def __call__(self, logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int64]) -> tuple[int, float] | None:
        """See :data:`~ipex_lookahead.drafting.draft_model.DraftChoice`. None where every token is forbidden."""
        for processor in self._processors:
            logits = processor(tokens, logits)
        if self._sampler is None:
            return most_likely(logits, tokens) if logits.max() > -np.inf else None
        try:
            token = self._sampler(np.ascontiguousarray(logits), len(tokens))
        except (InputError, EngineError):  # the target may never come here; if it does, it will say what is wrong
            return None
        return token, self._sampler.lead(logits, len(tokens), token)
