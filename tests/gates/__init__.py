"""How many cases run: a small number in ``make test``, all of them in ``make gates``."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

Case = TypeVar("Case")


def large() -> bool:
    """Return True in ``make gates``: ``IPEX_LOOKAHEAD_GATES`` is "large"."""
    return os.environ.get("IPEX_LOOKAHEAD_GATES") == "large"


def cases(small: int, many: int) -> int:
    """Return the number of random cases to try: ``small``, or ``many`` in ``make gates``."""
    return many if large() else small


def seed() -> int:
    """Return the seed of random cases: ``IPEX_LOOKAHEAD_GATE_SEED``, or 1."""
    return int(os.environ.get("IPEX_LOOKAHEAD_GATE_SEED", "1"))


def commit() -> str:
    """Return the hash of the commit that is checked out, or "" where git or the repository is missing."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _numbered(case: Any) -> Mapping[str, Hashable]:
    return dict(zip(map(str, range(len(case))), case, strict=True)) if isinstance(case, tuple) else {"": case}


def rotating(
    given: Sequence[Case],
    count: int,
    parts: Callable[[Case], Mapping[str, Hashable]] = _numbered,
    name: Callable[[Case], str] = repr,
    rotation: str | None = None,
) -> list[Case]:
    """Return ``count`` of the cases, in their order; all of them in ``make gates``.

    The choice follows the commit, so that each case runs on some commits, and is the same in every process. Each case
    that is taken brings the most pairs of values that are missing (greedy, as in ``tests/support/pairs.py``), so a
    sample has every value of every parameter as far as ``count`` allows.

    Args:
        given: all cases.
        count: number of cases; 0 leaves the whole test to ``make gates``.
        parts: the parameters of a case by name; the elements of a tuple where not given.
        name: a text that identifies a case and is equal in every process.
        rotation: a text in place of the commit's hash.
    """
    if large() or count >= len(given):
        return list(given)
    start = commit() if rotation is None else rotation
    order = sorted(given, key=lambda case: hashlib.sha256(f"{start} {seed()} {name(case)}".encode()).digest())
    features = []
    for case in order:
        single = sorted(parts(case).items())
        features.append({*single, *combinations(single, 2)})
    # Lazy greedy: what a case brings only falls as others are taken, so a stale number is an upper bound.
    brings = [len(each) for each in features]
    seen: set[Any] = set()
    left, taken = set(range(len(order))), []
    for _ in range(count):
        best = -1
        for index in sorted(left, key=lambda index: (-brings[index], index)):
            if best >= 0 and brings[index] <= brings[best]:
                break
            brings[index] = len(features[index] - seen)
            if best < 0 or brings[index] > brings[best]:
                best = index
        left.remove(best)
        seen |= features[best]
        taken.append(best)
    chosen = {id(order[index]) for index in taken}
    return [case for case in given if id(case) in chosen]
