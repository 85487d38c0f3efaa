"""Reads a text piece by piece, for ways of writing values other than JSON."""

from __future__ import annotations

import re

MOST_DEEP = 64
"""Lists and objects inside each other; deeper text is not a call."""
_SPACE = re.compile(r"\s*")


class Scanner:
    """Scans a text and skips white space before each match.

    Attributes:
        at: up to where it has read.
    """

    def __init__(self, text: str) -> None:
        self.at = 0
        self._text = text

    def space(self) -> None:
        """Go on behind white space."""
        found = _SPACE.match(self._text, self.at)
        self.at = found.end() if found else self.at

    def next(self, sign: str) -> bool:
        """Whether a sign comes next; if so, go on behind it."""
        self.space()
        if not self._text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def taken(self, sign: str) -> None:
        """Go on behind a sign. Raises ValueError where something else comes."""
        if not self.next(sign):
            raise ValueError(sign)

    def matched(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Go on behind what a pattern matches. Raises ValueError where it matches nothing."""
        self.space()
        found = pattern.match(self._text, self.at)
        if found is None:
            raise ValueError(pattern.pattern)
        self.at = found.end()
        return found

    def ended(self) -> None:
        """Raises ValueError where something else than white space is left."""
        self.space()
        if self.at < len(self._text):
            raise ValueError(self._text[self.at :])
