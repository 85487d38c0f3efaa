"""Covering arrays: few combinations of many options, in which every two values of two options stand together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Row = dict[str, Any]
Pair = tuple[str, Any, str, Any]


def pairs_of(row: Row) -> set[Pair]:
    """The pairs of values in a row, complete or not."""
    return {(a, row[a], b, row[b]) for a, b in combinations(sorted(row), 2)}


def possible_pairs(options: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool]) -> set[Pair]:
    """Every pair of values of two options that may stand together."""
    names = sorted(options)
    every = ((a, x, b, y) for a, b in combinations(names, 2) for x, y in product(options[a], options[b]))
    return {(a, x, b, y) for a, x, b, y in every if allowed({a: x, b: y})}


def pairwise(options: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """Rows with a value of each option, in which every possible pair occurs (greedy, after AETG; Cohen et al., 1997).

    Args:
        options: values, hashable, of each option.
        allowed: whether a row, or a part of one, may be; a part is allowed where some whole row with it is.
    """
    missing = possible_pairs(options, allowed)
    rows: list[Row] = []
    while missing:
        a, x, b, y = min(missing, key=repr)
        row = {a: x, b: y}
        for name in sorted(options, key=lambda name: (-len(options[name]), name)):
            if name not in row:
                fits = [value for value in options[name] if allowed({**row, name: value})]
                # The value that brings the most pairs; in turn where several do.
                turn = len(rows) % len(fits)
                fits = fits[turn:] + fits[:turn]
                row[name] = max(fits, key=lambda value, n=name: len(pairs_of({**row, n: value}) & missing))
        missing -= pairs_of(row)
        rows.append(row)
    return rows
