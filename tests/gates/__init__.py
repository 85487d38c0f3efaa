"""Attacks at random, from a seed: a few cases in ``make test``, many in ``make gates``, fewest in ``make sanitize``."""

from __future__ import annotations

import os


def cases(small: int, large: int) -> int:
    """How many cases to try: ``small``; or ``large`` or a quarter of ``small``, by ``IPEX_LOOKAHEAD_GATES``.

    The variable is "large" or, for sanitizers, under which everything takes ten times as long, "least".
    """
    sizes = {"large": large, "least": max(1, small // 4)}
    return sizes.get(os.environ.get("IPEX_LOOKAHEAD_GATES", ""), small)


def seed() -> int:
    """Where the attack begins: ``IPEX_LOOKAHEAD_GATE_SEED``, or always the same place."""
    return int(os.environ.get("IPEX_LOOKAHEAD_GATE_SEED", "1"))
