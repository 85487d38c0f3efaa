"""Progress bars and status lines, and the consoles of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ipex_lookahead.system.terminal import Draw, bar, may_draw, plain_output, print_status

if TYPE_CHECKING:
    from rich.console import Console


LONG_PROMPT = 256
"""Minimum number of tokens of a prompt to show a bar for."""


def console(*, stderr: bool = False) -> Console:
    """Return a console without truncation; with ``NO_COLOR`` it writes no escape sequences at all."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=True, highlight=False, force_terminal=False if plain_output() else None)


@contextmanager
def progress_bar(total: int, title: str = "measuring") -> Iterator[Callable[[], None]]:
    """Show a bar on standard error if it is a terminal, and return a function to advance it by one."""
    if not may_draw():
        print_status(f"{title} ({total}) ...")
    done = 0
    with bar(title, total) as draw:

        def advance() -> None:
            nonlocal done
            done += 1
            draw(done)

        yield advance


@contextmanager
def byte_bar(title: str) -> Iterator[Draw]:
    """Show a bar on standard error if it is a terminal, and return a function that takes done and total bytes."""
    if not may_draw():
        print_status(f"{title} ...")
    with bar(title, of="bytes") as draw:
        yield draw


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Return a function that shows a status line on standard error if it is a terminal."""
    if not may_draw():
        yield lambda text: print_status(f"{text} ...")
        return
    with console(stderr=True).status("starting") as line:
        yield line.update


class PromptBar:
    """The progress of the prefill of a long prompt, on standard error if it is a terminal."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown
        self._open = ExitStack()
        self._draw: Draw | None = None

    def update(self, done: int, total: int) -> None:
        """Show the number of processed or cached tokens; the last one removes the bar."""
        if done >= total:
            self.close()
            return
        if self._draw is None:
            if not self._shown or total - done < LONG_PROMPT:
                return
            if not may_draw():
                self._shown = False  # print once
                print_status(f"reading the prompt ({total - done} tokens) ...")
                return
            self._draw = self._open.enter_context(bar("reading the prompt", total, of="tokens"))
        self._draw(done)

    def close(self) -> None:
        """Remove the bar."""
        self._open.close()
        self._draw = None
