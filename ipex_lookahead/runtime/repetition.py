"""Repetition at the end of an answer."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from ipex_lookahead.decoding.sampling import Ids

TAIL = 64
"""Number of last tokens to search for a repetition."""
LOOP, LONGEST = 192, 64
"""An answer loops if its last ``LOOP`` tokens are one part of at most ``LONGEST`` tokens again and again."""


def repeats(ids: Sequence[int]) -> bool:
    """Return True if the last 64 tokens occur earlier too, or consist of one repeated part."""
    tail = list(ids[-TAIL:])
    if len(tail) < TAIL:
        return False
    if any(tail[period:] == tail[:-period] for period in range(1, TAIL // 2 + 1)):
        return True
    end, before = array("q", tail).tobytes(), array("q", ids[:-1]).tobytes()
    at = before.find(end)
    while at % 8 and at >= 0:  # a match across token boundaries
        at = before.find(end, at + 1)
    return at >= 0


def loops(ids: Sequence[int]) -> bool:
    """Return True if the last 192 tokens are at least three times the same part: stricter than :func:`repeats`.

    Text that is quoted, or code that is written again, does not loop.
    """
    tail = list(ids[-LOOP:])
    return len(tail) == LOOP and any(tail[period:] == tail[:-period] for period in range(1, LONGEST + 1))


def ends_in_loop(ids: Sequence[int]) -> bool:
    """Return True if an answer of these tokens ends with ``stop_loops``: checked after every 64 tokens."""
    return len(ids) % TAIL == 0 and loops(ids)


def stop_at_loops(begin: int) -> Callable[[Ids], bool]:
    """Return a criterion of :mod:`ipex_lookahead.runtime.stop_texts` that ends a sequence that loops.

    Args:
        begin: index of the answer's first token in the sequence.
    """
    return lambda ids: (len(ids) - begin) % TAIL == 0 and loops(ids[begin:].tolist())
