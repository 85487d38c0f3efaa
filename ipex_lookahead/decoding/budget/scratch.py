"""Scratch rows pay in later steps, which no survival says; what steps with all of them have emitted does."""

from __future__ import annotations

WHOLE_PRIOR, WHOLE_FOLLOW = 1.6, 0.05
"""Tokens a step with all scratch rows before any was seen (Lookahead Decoding, arXiv 2402.02057), and the weight of a
new one."""


class Scratch:
    """What a step with whole drafts, scratch rows included, emits.

    Attributes:
        tokens: of a sequence.
    """

    def __init__(self) -> None:
        self.tokens = WHOLE_PRIOR

    def emitted(self, tokens: float) -> None:
        """A step with whole drafts has emitted so many, of a sequence."""
        self.tokens += WHOLE_FOLLOW * (tokens - self.tokens)
