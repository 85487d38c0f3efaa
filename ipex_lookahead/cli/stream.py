"""The answer as it comes: its text shown, with what came for free marked if wished; its tokens kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, zip_longest
from typing import Any

import click

from ipex_lookahead.cli.wrapping import Paint, WordWrap
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.system.terminal import is_terminal, may_draw
from ipex_lookahead.tokenization.detokenizer import Detokenizer

COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")

_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Painter:
    """Writes text to standard output at once: what came for free in its source's colour, or in brackets without one.

    On a terminal, control characters other than line ends and tabs are left out: a model may not steer it.

    Args:
        wrap: breaks the lines; None leaves that to the terminal.
        coloured: whether colours are written; None = where a terminal takes them.

    Attributes:
        colours: by source; "" where none is written.
    """

    def __init__(self, wrap: WordWrap | None = None, coloured: bool | None = None) -> None:
        self.colours: dict[str, str] = {}
        self._wrap = wrap
        self._coloured = coloured

    def write(self, part: str, origin: str | None = None) -> None:
        """A piece of text, and the source that had drafted it; None = the target's own."""
        coloured = may_draw(sys.stdout) if self._coloured is None else self._coloured
        part = part.translate(_CONTROL) if coloured or is_terminal(sys.stdout) else part
        paint: Paint = str
        if origin is not None:
            number = len(self.colours) % len(COLOURS)
            colour = self.colours.setdefault(origin, COLOURS[number] if coloured else "")
            if colour:
                paint = partial(click.style, fg=colour)
            else:
                part = f"[{part}]"
        if self._wrap is not None:
            self._wrap.put(part, paint)
        else:
            sys.stdout.write(paint(part))
        sys.stdout.flush()


class Answer:
    """What the model has said so far.

    Args:
        tokenizer: the model's.
        write: gets the text, piece by piece.

    Attributes:
        ids: the generated token ids.
        text: their text as far as it was written; special tokens left out.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self.ids: list[int] = []
        self.text = ""
        self._detokenizer = Detokenizer(tokenizer)
        self._write = write

    def put(self, token: int) -> None:
        """Take the next token."""
        self.ids.append(token)
        self._say(self._detokenizer.put(token))

    def end(self) -> None:
        """Write what was held back for a character that did not come to its end."""
        self._say(self._detokenizer.end())

    def _say(self, text: str) -> None:
        self.text += text
        if text:
            self._write(text)


class MarkedAnswer(Answer):
    """An answer that is written a step at a time, when it is known which of its tokens came for free.

    Args:
        tokenizer: the model's.
        paint: gets the text and its origin, piece by piece.
    """

    def __init__(self, tokenizer: Any, paint: Callable[[str, str | None], None]) -> None:
        super().__init__(tokenizer, lambda text: paint(text, self._origin))
        self._origin: str | None = None
        self._shown = 0

    def put(self, token: int) -> None:
        """Take the next token; it is written with its step."""
        self.ids.append(token)

    def stepped(self, stats: GenerationStats) -> None:
        """Write what has come, now that ``stats`` counts the step."""
        stats.fold()
        waiting, origins = self.ids[self._shown :], stats.origins()[self._shown :]
        self._shown = len(self.ids)
        for text, origin in by_origin(self._detokenizer, waiting, origins):
            self._origin = origin
            self._say(text)
        self._origin = None


def by_origin(
    detokenizer: Detokenizer, ids: Sequence[int], origins: Sequence[str | None]
) -> Iterator[tuple[str, str | None]]:
    """The text in pieces of one origin each. A character of several tokens belongs to the last of them."""
    marked = zip_longest(ids, origins[: len(ids)])  # what an interrupt left uncounted has no origin
    for origin, group in groupby(marked, key=lambda entry: entry[1]):
        if text := "".join(detokenizer.put(token) for token, _ in group):
            yield text, origin


def print_accepted(tokenizer: Any, ids: Sequence[int], origins: Sequence[str | None]) -> None:
    """Print the text of ``ids``: accepted tokens coloured by source, or in brackets where there is no colour."""
    from rich.text import Text

    from ipex_lookahead.cli.progress import console

    out, detokenizer = console(), Detokenizer(tokenizer)
    painter = Painter(coloured=out.is_terminal and not out.no_color)
    for part, origin in by_origin(detokenizer, ids, origins):
        painter.write(part, origin)
    painter.write(detokenizer.end() + "\n")
    if painter.colours:
        names = Text("free: ", style="dim")
        for origin, colour in painter.colours.items():
            names.append(f"{origin} ", style=colour)
        console(stderr=True).print(names)
