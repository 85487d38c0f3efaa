"""The objective: tokens a second of a draft, and which of its tokens are worth their rows.

A draft D is worth

    R(D) = E[tokens | D] / (T(rows + |D|) + C(D))

where E[tokens | D] is one token of the model's own for each sequence and the survivals of the draft's tokens
(:mod:`.acceptance`), T(n) the seconds of a forward of n rows (:mod:`.row_cost`), ``rows`` those that are there anyway,
and C(D) the seconds of drafting D (:mod:`.draft_cost`): nothing once it is there. The draft that is verified has the
largest R of all its first parts, and at least ``WORTH`` times that of no draft; else none is.

Reference: the objective is that of SmartSpec (Liu et al., arXiv 2406.14066) and Sequoia (Chen et al., arXiv
2402.12374), for measured T and best-first trees.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.controller.acceptance import Expected

WORTH = 1.02
"""A draft must promise at least this much more speed than none: estimates err."""
WORTH_BEHIND = 1.25
"""And this much while drafting has cost more than it brought (:mod:`.gain`)."""


def best_count(
    tokens: float, added: Sequence[float], seconds: Sequence[float], least: float, longest: float
) -> tuple[int, float]:
    """The n with the largest R(first n) above ``least``, and that R; else 0 and ``least``.

    Every n is tried, for T has the steps of the kernels' tiles.

    Args:
        tokens: that a step without a draft emits.
        added: what the 1st, 2nd, ... part of the draft adds to E[tokens | D].
        seconds: T + C without a draft, with its first part, with its first two, ...
        least: tokens a second.
        longest: seconds that the step may take at most.
    """
    best = 0
    for n, gain in enumerate(added, 1):
        tokens += gain
        took = seconds[n]
        if took > longest:
            break
        rate = tokens / took
        if rate > least:
            best, least = n, rate
    return best, least


def best_first(expected: Sequence[Expected]) -> list[tuple[float, int]]:
    """(survival, sequence) of all tokens, likeliest first, those of a sequence in their own order."""
    order = []
    for place, seen in enumerate(expected):
        least = 1.0
        for row, survival in enumerate(seen.survival):
            least = min(least, survival)
            order.append((-least, row, place, survival))
    order.sort()
    return [(survival, place) for _, _, place, survival in order]
