"""What long measurements show: a bar, or a line."""

from __future__ import annotations

from typing import Any


def progress_bar(total: int, title: str = "measuring") -> Any:
    """A context that gives a function to call after each answer; it draws on a terminal's standard error only."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import Progress

    @contextmanager
    def drawn() -> Any:
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(title, total=total)
            yield lambda: bar.advance(task)

    return drawn()


def status() -> Any:
    """A context that gives a function to show what is being done, on a terminal's standard error only."""
    from contextlib import contextmanager

    from rich.console import Console

    @contextmanager
    def shown() -> Any:
        console = Console(stderr=True)
        if not console.is_terminal:
            yield lambda text: None
            return
        with console.status("starting") as line:
            yield line.update

    return shown()
