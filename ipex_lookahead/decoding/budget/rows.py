"""Row choice: which tokens of the drafts are worth their rows, the likeliest first."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ipex_lookahead.decoding.budget.acceptance import Expected
from ipex_lookahead.drafting.draft import Draft

Times = Sequence[float]
"""What a forward of 1, 2, 3, ... rows takes."""


def most_worth(survival: Sequence[float], live: int, times: Times, worth: float, dearest: float) -> tuple[int, float]:
    """The number of tokens, best first, with the highest rate above ``worth``, and that rate; else 0 and ``worth``.

    The rate of n tokens is R(n) = E[tokens | n] / T(live + n). Every n is tried, for T has the steps of the kernels'
    tiles.

    Args:
        survival: for each token the probability that it is accepted.
        live: rows that are there anyway; each emits a token.
        times: for at least as many rows as there are in all.
        worth: tokens a second.
        dearest: seconds that the forward may take at most.
    """
    tokens, best, rows = float(live), 0, live
    for chance in survival:
        tokens += chance
        if times[rows] > dearest:
            break
        rate = tokens / times[rows]
        rows += 1
        if rate > worth:
            best, worth = rows - live, rate
    return best, worth


def most_worth_in_step(
    expected: Sequence[Expected], drafts: Sequence[Draft], times: Times, worth: float, dearest: float
) -> tuple[int, float]:
    """As :func:`most_worth`, for a number of tokens of each draft: a depth counts where all sequences come that far."""
    live, best = len(drafts), 0
    most = max(len(seen.survival) for seen in expected)
    reached: list[list[float]] = [[] for _ in drafts]  # by depth, the chance that one of the tokens taken is right
    depths: list[list[int]] = [[] for _ in drafts]
    rows = live
    for n in range(most):
        for seen, draft, chances, deep in zip(expected, drafts, reached, depths, strict=True):
            if n >= len(seen.survival):
                continue
            rows += 1
            deep.append(0 if draft.parents[n] < 0 else deep[draft.parents[n]] + 1)
            if deep[n] == len(chances):
                chances.append(0.0)
            chances[deep[n]] += seen.survival[n]
        tokens = 1.0 + sum(prod(min(1.0, chance) for chance in depth) for depth in zip(*reached, strict=False))
        took = times[rows - 1]
        if took > dearest:
            break
        rate = live * tokens / took
        if rate > worth:
            best, worth = n + 1, rate
    return best, worth


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
