"""Sizes of prefix caches: the memory that sequences and conversations of an engine need."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.decoding.prefix_cache import PAGE, RUNNING_STATES, PrefixCache, pages_of
from ipex_lookahead.engines.api import Engine, position_bytes, state_bytes

CONVERSATION_STATES = 8
"""Number of prefixes of a conversation with stored recurrent states."""
CONVERSATION_BYTES = 2**30
"""Bytes of keys and values that are stored of conversations other than the last one."""


def memory_for(engine: Engine, positions: Sequence[int], kept: int = 0) -> PrefixCache:
    """Return a prefix cache with room for sequences of these numbers of positions and for ``kept`` stored states."""
    pages, state = sum(pages_of(count) + 1 for count in positions), state_bytes(engine)
    if not state:
        return PrefixCache(pages)
    page = PAGE * position_bytes(engine)
    budget = (pages + kept) * page + (RUNNING_STATES * len(positions) + kept) * state
    return PrefixCache(budget, page=page, state=state)


def conversation_memory(engine: Engine) -> PrefixCache:
    """Return a prefix cache with room for one conversation of the engine's full context length.

    Earlier conversations stay as far as they take no more than ``CONVERSATION_BYTES``.
    """
    memory = memory_for(engine, [engine.max_context], CONVERSATION_STATES)
    if size := position_bytes(engine):
        memory.most_kept = CONVERSATION_BYTES // (PAGE * size)
    return memory
