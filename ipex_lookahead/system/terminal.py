"""Terminal output: progress bars, and messages for interactive use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO


def plain_output() -> bool:
    """Return True if ``NO_COLOR`` is set or the terminal is dumb, so that no escape sequences may be written."""
    return os.environ.get("NO_COLOR", "") != "" or os.environ.get("TERM") == "dumb"


def may_draw(stream: TextIO | None = None) -> bool:
    """Return True if ``stream`` (default: standard error) is a terminal that supports bars and spinners."""
    return is_terminal(sys.stderr if stream is None else stream) and not plain_output()


def is_terminal(stream: TextIO | None) -> bool:
    """Return True if the stream is an open terminal; None is a stream that was closed when Python started."""
    return stream is not None and not stream.closed and stream.isatty()


def print_status(sentence: str) -> None:
    """Print a status message on standard error if it is a terminal."""
    if is_terminal(sys.stderr):
        print(sentence, file=sys.stderr, flush=True)


def note(shown: bool, text: str) -> None:
    """Print a line on standard error, terminal or not, if ``shown``."""
    if shown:
        print(text, file=sys.stderr, flush=True)


def counted(number: int, thing: str) -> str:
    """Format a count with its noun: ``1 prompt``, ``2 prompts``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


class Draw(Protocol):
    """Updates a bar; arguments that are None remain unchanged."""

    def __call__(self, done: int, total: int | None = None, title: str | None = None) -> None:
        """Set the completed amount, the total and the title."""
        ...


@contextmanager
def bar(title: str, total: int | None = None, *, of: str = "", shown: bool = True) -> Iterator[Draw]:
    """Show a transient bar on standard error, if it supports bars.

    Args:
        title: name of the operation.
        total: amount at completion; None if unknown.
        of: unit of the counter, "bytes" or "tokens"; "": only the remaining time is shown.
        shown: False disables the bar.
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
