"""Search for stop texts in a streaming text."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the stop text with the first end; the longest one if several have the same end.

    The search takes constant time per character and stop text (Knuth, Morris and Pratt, Fast pattern matching in
    strings, 1977).

    Args:
        texts: The stop texts, not empty.

    Attributes:
        begun: Number of last characters that may be the beginning of a stop text.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = sorted(set(texts), key=len, reverse=True)
        self._failures = [_failures(text) for text in self._texts]
        self._matched = [0] * len(self._texts)
        self.begun = 0

    def put(self, text: str) -> tuple[int, str] | None:
        """Add a piece; return (end of the stop text in the piece, stop text), or None.

        It must not be called again after a match.
        """
        if not self._texts:
            return None
        for at, character in enumerate(text, 1):
            found = None
            for number, (stop, failures) in enumerate(zip(self._texts, self._failures, strict=True)):
                matched = self._matched[number]
                while matched and stop[matched] != character:
                    matched = failures[matched - 1]
                if stop[matched] == character:
                    matched += 1
                    if matched == len(stop):
                        found = found or stop
                        matched = failures[matched - 1]
                self._matched[number] = matched
            if found is not None:
                return at, found
        self.begun = max(self._matched)
        return None

    def pass_over(self, text: str) -> None:
        """Add a piece, and ignore stop texts that end in it; one that begins in it may be found later."""
        for character in text:
            self.put(character)
        self.begun = max(self._matched, default=0)


def _failures(text: str) -> list[int]:
    """Return for each prefix the length of its longest proper suffix that is a prefix too."""
    found, matched = [0] * len(text), 0
    for at in range(1, len(text)):
        while matched and text[at] != text[matched]:
            matched = found[matched - 1]
        matched += text[at] == text[matched]
        found[at] = matched
    return found
