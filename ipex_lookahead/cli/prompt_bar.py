"""What is shown while a long prompt is read."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.terminal import may_draw, tell_people

LONG_PROMPT = 256
"""Tokens from which on a prompt takes long enough for a bar."""


class PromptBar:
    """How far the reading of a prompt has come, on a terminal's standard error only, and for long prompts only."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown
        self._bar: Any = None
        self._task: Any = None

    def update(self, done: int, total: int) -> None:
        """So many of the prompt's tokens are read; the bar goes away with the last."""
        if done >= total:
            self.close()
            return
        if self._bar is None:
            if not self._shown or total < LONG_PROMPT:
                return
            if not may_draw():
                self._shown = False  # once is enough
                tell_people(f"reading the prompt ({total} tokens) ...")
                return
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("reading the prompt", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
