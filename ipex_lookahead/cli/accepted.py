"""A text that shows which of its tokens came for free, and from where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, zip_longest
from typing import Any

import click

from ipex_lookahead.cli.stream import Answer, printable
from ipex_lookahead.cli.wrapping import Paint, WordWrap
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.system.terminal import is_terminal, may_draw

COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")


def print_accepted(tokenizer: Any, ids: Sequence[int], origins: Sequence[str | None]) -> None:
    """Print the text of ``ids``: accepted tokens coloured by source, or in brackets where there is no colour."""
    from rich.text import Text

    from ipex_lookahead.cli.progress import console

    out = console()
    on_terminal = out.is_terminal or is_terminal(sys.stdout)
    coloured = out.is_terminal and not out.no_color
    colours: dict[str, str] = {}
    text = Text()
    for part, origin in runs(tokenizer, ids, origins):
        part = printable(part) if on_terminal else part
        if origin is None:
            text.append(part)
        elif coloured:
            text.append(part, style=colours.setdefault(origin, COLOURS[len(colours) % len(COLOURS)]))
        else:
            colours[origin] = ""
            text.append(f"[{part}]")
    out.print(text)
    if colours:
        names = Text("free: ", style="dim")
        for origin, colour in colours.items():
            names.append(f"{origin} ", style=colour)
        console(stderr=True).print(names)


class Painter:
    """Writes text to standard output at once: what came for free in its source's colour, or in brackets without one.

    Args:
        wrap: breaks the lines; None leaves that to the terminal.

    Attributes:
        colours: those given so far, by source.
    """

    def __init__(self, wrap: WordWrap | None = None) -> None:
        self.colours: dict[str, str] = {}
        self._wrap = wrap

    def write(self, part: str, origin: str | None) -> None:
        """A piece of text, and the source that had drafted it; None = the target's own."""
        part = printable(part) if is_terminal(sys.stdout) else part
        paint: Paint = str
        if origin is not None and may_draw(sys.stdout):
            colour = self.colours.setdefault(origin, COLOURS[len(self.colours) % len(COLOURS)])
            paint = partial(click.style, fg=colour)
        elif origin is not None:
            part = f"[{part}]"
        if self._wrap is not None:
            self._wrap.put(part, paint)
        else:
            sys.stdout.write(paint(part))
        sys.stdout.flush()


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
        marked = zip_longest(waiting, origins[: len(waiting)])  # what an interrupt left uncounted is nobody's
        for origin, group in groupby(marked, key=lambda entry: entry[1]):
            self._origin = origin
            self._say("".join(self._detokenizer.put(token) for token, _ in group))
        self._origin = None


def runs(tokenizer: Any, ids: Sequence[int], origins: Sequence[str | None]) -> Iterator[tuple[str, str | None]]:
    """The text in pieces of one origin each. A character of several tokens belongs to the last of them."""
    origins = [*origins, *[None] * (len(ids) - len(origins))]  # what an interrupt left uncounted
    done, start = 0, 0
    while start < len(ids):
        end = start + 1
        while end < len(ids) and origins[end] == origins[start]:
            end += 1
        text = tokenizer.decode(ids[:end], skip_special_tokens=True)
        if end < len(ids):
            text = text.rstrip("\ufffd")
        if len(text) > done:
            yield text[done:], origins[start]
            done = len(text)
        start = end
