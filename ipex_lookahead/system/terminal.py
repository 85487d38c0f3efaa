"""What is for people at a terminal: bars, and sentences that no pipe gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO


def wants_plain() -> bool:
    """``NO_COLOR`` is set, or the terminal is a dumb one: no escape sequence is written, of whatever kind."""
    return os.environ.get("NO_COLOR", "") != "" or os.environ.get("TERM") == "dumb"


def may_draw(stream: TextIO | None = None) -> bool:
    """Whether ``stream``, standard error if None, is a terminal that takes bars and spinners."""
    return is_terminal(sys.stderr if stream is None else stream) and not wants_plain()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at the other end; a stream that is closed, or was when Python started (None), has nobody."""
    return stream is not None and not stream.closed and stream.isatty()


def tell_people(sentence: str) -> None:
    """Say on standard error what is being waited for; a pipe or a file gets nothing."""
    if is_terminal(sys.stderr):
        print(sentence, file=sys.stderr, flush=True)


def note(shown: bool, text: str) -> None:
    """A line on standard error, of whatever kind that is, where it is to be shown."""
    if shown:
        print(text, file=sys.stderr, flush=True)


def counted(number: int, thing: str) -> str:
    """``1 prompt``, ``2 prompts``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


class Draw(Protocol):
    """Moves a bar. What is None stays as it is."""

    def __call__(self, done: int, total: int | None = None, title: str | None = None) -> None:
        """So much is done, of so much."""
        ...


@contextmanager
def bar(title: str, total: int | None = None, *, of: str = "", shown: bool = True) -> Iterator[Draw]:
    """A bar on standard error, which goes away at the end; where nothing may be drawn there, nothing is.

    Args:
        title: what is being done.
        total: when it is full; None until that is known.
        of: "bytes" or "tokens" tells how many of them are done, and of how many; "" only the time that is left.
        shown: False draws nothing.
    """
    if not (shown and may_draw()):
        yield lambda done, total=None, title=None: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts: dict[str, tuple[ProgressColumn, ...]] = {
        "": (),
        "bytes": (DownloadColumn(), TransferSpeedColumn()),
        "tokens": (MofNCompleteColumn(),),
    }
    columns = (TextColumn("{task.description}"), BarColumn(), *counts[of], TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)

        def draw(done: int, total: int | None = None, title: str | None = None) -> None:
            progress.update(task, completed=done, total=total, description=title)

        yield draw
