"""Texts to stop at, looked for in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first of some texts to end, in whatever pieces; of several that end together the longest.

    Each character is looked at once for each text, however long that is (Knuth, Morris and Pratt, Fast pattern matching
    in strings, 1977).

    Args:
        texts: none of them empty.

    Attributes:
        begun: characters at the end of what has come that may be the beginning of one of them.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = sorted(set(texts), key=len, reverse=True)
        self._failures = [_failures(text) for text in self._texts]
        self._matched = [0] * len(self._texts)
        self.begun = 0

    def put(self, text: str) -> tuple[int, str] | None:
        """The next piece -> how many of its characters there are up to the end of a text to stop at, and which it is.

        None where none has ended; after one has, nothing more is to be asked.
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
        """Take the next piece; a text that ends in it is not found, one that only begins in it may be."""
        for character in text:
            self.put(character)
        self.begun = max(self._matched, default=0)


def _failures(text: str) -> list[int]:
    """For each beginning of a text, of 1, 2, ... characters, its longest end that is a beginning too."""
    found, matched = [0] * len(text), 0
    for at in range(1, len(text)):
        while matched and text[at] != text[matched]:
            matched = found[matched - 1]
        matched += text[at] == text[matched]
        found[at] = matched
    return found
