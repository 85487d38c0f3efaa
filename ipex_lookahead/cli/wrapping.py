"""Word wrap of streaming text in a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable

from ipex_lookahead.cli.tables import columns_of, terminal_width

_FENCE = "```"
_PARTS = re.compile(r"\n|[^\S\n]+|\S+")
Paint = Callable[[str], str]


class WordWrap:
    """Writes words as soon as they are complete, and breaks the line before a word that does not fit.

    Code between fences and words wider than a line are not changed. Wide characters, such as Chinese, are single words.

    Args:
        write: Receives the text with line breaks.
        width: Returns the columns of a line; called before each word, because windows change.
    """

    def __init__(self, write: Callable[[str], object], width: Callable[[], int] = terminal_width) -> None:
        self._write = write
        self._width = width
        self._word: list[tuple[str, Paint]] = []
        self._gap = ""
        self._column = 0
        self._in_code = False

    def put(self, text: str, paint: Paint = str) -> None:
        """Add a piece of text; ``paint`` adds colors to its words."""
        for part in _PARTS.findall(text):
            if part == "\n":
                self._flush()
                self._gap, self._column = "", 0
                self._write("\n")
            elif part.isspace():
                self._flush()
                self._gap += part
            else:
                self._take(part, paint)

    def end(self) -> None:
        """Write the last word."""
        self._flush()

    def _take(self, part: str, paint: Paint) -> None:
        if part.isascii():
            self._word.append((part, paint))
            return
        for sign in part:
            wide = columns_of(sign) > 1
            if wide:
                self._flush()
            self._word.append((sign, paint))
            if wide:
                self._flush()

    def _flush(self) -> None:
        if not self._word:
            return
        word = "".join(part for part, _ in self._word)
        size, gap, width = columns_of(word), columns_of(self._gap.expandtabs()), self._width()
        if self._column == 0 and word.startswith(_FENCE):
            self._in_code = not self._in_code
        if self._column and self._column + gap + size > width and not self._in_code:
            self._write("\n")
            self._column = 0
        else:
            self._write(self._gap)
            self._column += gap
        self._column = (self._column + size - 1) % width + 1  # the terminal breaks what is wider
        for part, paint in self._word:
            self._write(paint(part))
        self._gap = ""
        self._word.clear()
