"""Reach: how many tokens a proposer is asked for that puts the likeliest first; none that are never taken."""

from __future__ import annotations

LEAST_REACH, MOST_REACH = 4, 16
"""Tokens that are asked for at least, and where less begins after a long draft."""


class Reach:
    """Twice as many tokens as were taken lately, so that no time is spent on more.

    Args:
        most: tokens that may be asked for.

    Attributes:
        tokens: to ask for in the next step.
    """

    def __init__(self, most: int) -> None:
        self.tokens = self._most = most

    def took(self, tokens: int) -> None:
        """So many of a draft were worth their rows."""
        self.tokens = min(self._most, max(LEAST_REACH, 2 * tokens, min(self.tokens - 1, MOST_REACH)))
