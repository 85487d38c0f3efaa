"""What people see while something is fetched: notes and a bar, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ipex_lookahead.terminal import may_draw


def note(shown: bool, text: str) -> None:
    """A line on standard error, where it is to be shown."""
    if shown:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def progress_bar(title: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how many bytes are there. Where standard error is no terminal, it draws nothing."""
    if not (shown and may_draw()):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
