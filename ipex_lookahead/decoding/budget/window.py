"""The window: optional rows that only bring drafts for later steps (``drafting.auto``)."""

from __future__ import annotations

WINDOW_PRIOR, WINDOW_FOLLOW = 0.07, 0.02
"""Tokens a step that a window is thought to bring, and the weight of a new count."""


class WindowGain:
    """What windows bring.

    Attributes:
        tokens: a step.
        rows: of one that is filled; 0 before any was offered.
    """

    def __init__(self) -> None:
        self.tokens = WINDOW_PRIOR
        self.rows = 0

    def brought(self, tokens: int) -> None:
        """A step has accepted so many of a window's tokens."""
        self.tokens += WINDOW_FOLLOW * (tokens - self.tokens)

    def may_pay(self, alone: float, beside: float) -> bool:
        """Whether its rows are cheap enough to look closer: a forward of one row without them, and with them."""
        return beside <= (1.0 + self.tokens) * alone

    def pay(self, windows: int, tokens: float, now: float, wide: float, worth: float) -> bool:
        """Whether a step that emits ``tokens`` in ``now`` seconds should have windows too, and take ``wide``."""
        return (tokens + windows * self.tokens) * now >= worth * tokens * wide
