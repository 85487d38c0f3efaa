"""The objective: tokens per second of a draft, and the profitable number of its tokens.

A draft D is worth

    R(D) = E[tokens | D] / (T(rows + |D|) + C(D))

E[tokens | D] is one token of the model's own for each sequence plus the survivals of the draft's tokens
(:mod:`.acceptance`). T(n) is the time of a forward of n rows (:mod:`.cost`), ``rows`` those without drafts. C(D) is the
time that drafting D takes: zero once the draft is there.

Reference: SmartSpec (Liu et al., arXiv 2406.14066) and Sequoia (Chen et al., arXiv 2402.12374), here with measured T.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ipex_lookahead.controller.acceptance import Expected, SourceRates

WORTH = 1.02
"""Smallest ratio of a draft's R to that of no draft, since estimates err. 1.05 and 1.1 replayed within 1.2 % of it."""


def best_count(
    tokens: float, added: Sequence[float], seconds: Sequence[float], least: float, longest: float = inf
) -> tuple[int, float]:
    """Return the n with the largest R(first n) above ``least``, and that R; else 0 and ``least``.

    Every n is tried, for T has the steps of the kernels' tiles.

    Args:
        tokens: expected tokens of a step without a draft.
        added: what the 1st, 2nd, ... token of the draft adds to E[tokens | D].
        seconds: T + C without a draft, with its first token, with its first two, ...
        least: tokens per second.
        longest: upper bound on the step, seconds.
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
    """Return (survival, sequence) of all tokens, most likely first, those of a sequence in their own order."""
    order = []
    for place, seen in enumerate(expected):
        least = 1.0
        for row, survival in enumerate(seen.survival):
            least = min(least, survival)
            order.append((-least, row, place, survival))
    order.sort()
    return [(survival, place) for _, _, place, survival in order]


def step_seconds(times: Sequence[float], live: int, rows: int, each: float = 0.0, copied: int = 0) -> list[float]:
    """Return T + C of a step of ``live`` sequences that draft 0 to ``rows`` tokens each.

    Args:
        times: T of 1, 2, ... rows, seconds.
        live: sequences of the step; their chains are drafted one after the other.
        rows: longest chain.
        each: drafting time of one token, seconds.
        copied: rows of each sequence before the chain.
    """
    alone = times[live - 1]
    return [alone + live * (times[live - 1 + copied + n] - alone + n * each) for n in range(rows + 1)]


def best_chain(
    rates: SourceRates,
    times: Sequence[float],
    live: int,
    most: int,
    copied: Sequence[float] = (),
    worth: float = WORTH,
) -> tuple[int, float]:
    """Return the best length of a chain that is not drafted yet, and its R per sequence; else 0 and the least R.

    Args:
        rates: of the chain's source.
        times: T of 1, 2, ... rows, seconds.
        live: sequences of the step.
        most: longest chain.
        copied: survivals of the tokens that the chain follows.
        worth: smallest ratio of R to that of no draft once the chain is drafted, so that it is not drafted in vain.
    """
    chance = copied[-1] if copied else 1.0
    added = []
    for depth in range(len(copied), len(copied) + most):
        chance *= rates.chance(depth)
        added.append(chance)
    seconds = step_seconds(times, live, most, rates.seconds, len(copied))
    alone = times[live - 1]
    least = max(WORTH, worth / (1.0 + live * rates.seconds / alone)) / alone
    return best_count(1.0 + sum(copied), added, seconds, least)
