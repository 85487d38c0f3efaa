"""The answer as it comes: its text shown, with what came for free marked if wished; its tokens kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, zip_longest
from typing import Any, Protocol

import click

from ipex_lookahead.cli.thoughts import Parts
from ipex_lookahead.cli.wrapping import Paint, WordWrap
from ipex_lookahead.conversation.thinking import Thought
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
        self._thinking = False

    def write(self, part: str, origin: str | None = None, *, thought: bool = False) -> None:
        """A piece of text, and the source that had drafted it; None = the target's own.

        What is thought is dim, with an empty line behind it; without colours it stands between ``<think>`` and
        ``</think>``.
        """
        coloured = may_draw(sys.stdout) if self._coloured is None else self._coloured
        part = part.translate(_CONTROL) if coloured or is_terminal(sys.stdout) else part
        if thought != self._thinking:
            self._thinking = thought
            begin, end = ("", "\n\n") if coloured else ("<think>\n", "\n</think>\n\n")
            self._put(begin if thought else end, str)
        paint: Paint = partial(click.style, dim=True) if thought and coloured else str
        if origin is not None:
            number = len(self.colours) % len(COLOURS)
            colour = self.colours.setdefault(origin, COLOURS[number] if coloured else "")
            if colour:
                paint = partial(click.style, fg=colour, dim=thought or None)
            else:
                part = f"[{part}]"
        self._put(part, paint)
        sys.stdout.flush()

    def _put(self, part: str, paint: Paint) -> None:
        if self._wrap is not None:
            self._wrap.put(part, paint)
        elif part:
            sys.stdout.write(paint(part))


class Answer:
    """What the model has said so far.

    Args:
        tokenizer: the model's.
        write: gets the text, piece by piece.
        think: gets what is thought; None: nothing is told apart.
        prompt: ids that the answer follows, for ``think``.

    Attributes:
        ids: the generated token ids.
        text: their text as far as it was written; special tokens left out, and what was thought.
        thought: whether anything was.
    """

    def __init__(
        self,
        tokenizer: Any,
        write: Callable[[str], None],
        think: Callable[[str], None] | None = None,
        prompt: Sequence[int] = (),
    ) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.thought = False
        self._parts = Parts(tokenizer, None if think is None else prompt)
        self._write = write
        self._think = think or write

    def put(self, token: int) -> None:
        """Take the next token."""
        self.ids.append(token)
        self._say(self._parts.of([token]))

    def end(self) -> None:
        """Write what was held back, for a character or a mark that did not come to its end."""
        self._say(self._parts.rest())

    def _say(self, parts: Sequence[str]) -> None:
        for part in parts:
            if isinstance(part, Thought):
                self.thought = True
                self._think(part)
            else:
                self.text += part
                self._write(part)


class Paints(Protocol):
    """``Painter.write``."""

    def __call__(self, part: str, origin: str | None = None, *, thought: bool = False) -> None:
        """Write a piece of text."""


class MarkedAnswer(Answer):
    """An answer that is written a step at a time, when it is known which of its tokens came for free.

    Args:
        tokenizer: the model's.
        paint: gets the text and its origin, piece by piece.
        prompt: ids that the answer follows.
    """

    def __init__(self, tokenizer: Any, paint: Paints, prompt: Sequence[int] = ()) -> None:
        super().__init__(
            tokenizer,
            lambda text: paint(text, self._origin),
            lambda text: paint(text, self._origin, thought=True),
            prompt,
        )
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
        for tokens, origin in _runs(waiting, origins):
            self._origin = origin
            self._say(self._parts.of(tokens))
        self._origin = None


def by_origin(
    detokenizer: Detokenizer, ids: Sequence[int], origins: Sequence[str | None]
) -> Iterator[tuple[str, str | None]]:
    """The text in pieces of one origin each. A character of several tokens belongs to the last of them."""
    for tokens, origin in _runs(ids, origins):
        if text := "".join(map(detokenizer.put, tokens)):
            yield text, origin


def _runs(ids: Sequence[int], origins: Sequence[str | None]) -> Iterator[tuple[list[int], str | None]]:
    """Tokens in runs of one origin each."""
    marked = zip_longest(ids, origins[: len(ids)])  # what an interrupt left uncounted has no origin
    for origin, group in groupby(marked, key=lambda entry: entry[1]):
        yield [token for token, _ in group], origin


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
