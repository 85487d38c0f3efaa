"""Attacks at random, from a seed: a small number of cases in ``make test``, many in ``make gates``."""

from __future__ import annotations

import os


def cases(small: int, large: int) -> int:
    """How many cases to try: ``small``, or ``large`` where ``IPEX_LOOKAHEAD_GATES`` is "large"."""
    return large if os.environ.get("IPEX_LOOKAHEAD_GATES") == "large" else small


def seed() -> int:
    """Where the attack begins: ``IPEX_LOOKAHEAD_GATE_SEED``, or always the same place."""
    return int(os.environ.get("IPEX_LOOKAHEAD_GATE_SEED", "1"))
