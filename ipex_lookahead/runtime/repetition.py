"""Repetition at the end of an answer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

TAIL = 64
"""Number of last tokens to search for a repetition."""


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
