"""A text that shows which of its tokens came for free, and from where."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ipex_lookahead.terminal import is_terminal

COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")


def print_accepted(tokenizer: Any, ids: Sequence[int], origins: Sequence[str | None]) -> None:
    """Print the text of ``ids``: accepted tokens coloured by source, or in brackets where there is no colour."""
    from rich.text import Text

    from ipex_lookahead.cli.progress import console
    from ipex_lookahead.cli.stream import printable

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
