"""A bar for long measurements."""

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
