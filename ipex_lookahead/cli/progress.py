"""What long measurements show: a bar, or a line; and the consoles that commands write with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ipex_lookahead.terminal import may_draw, tell_people, wants_plain

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """A console for sentences of any length; with ``NO_COLOR`` it writes no escape sequence, bold and dim included."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=True, highlight=False, force_terminal=False if wants_plain() else None)


@contextmanager
def progress_bar(total: int, title: str = "measuring") -> Iterator[Callable[[], None]]:
    """Gives a function to call after each answer; what is drawn is on a terminal's standard error only."""
    if not may_draw():
        tell_people(f"{title} ({total}) ...")
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def byte_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to call with the bytes done and the bytes in all; drawn on a terminal's standard error only."""
    if not may_draw():
        tell_people(f"{title} ...")
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Gives a function to show what is being done, on a terminal's standard error only."""
    if not may_draw():
        yield lambda text: tell_people(f"{text} ...")
        return
    with console(stderr=True).status("starting") as line:
        yield line.update
