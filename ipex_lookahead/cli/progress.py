"""What is shown while something takes long: a bar, or a line; and the consoles that commands write with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ipex_lookahead.system.terminal import Draw, bar, may_draw, tell_people, wants_plain

if TYPE_CHECKING:
    from rich.console import Console


LONG_PROMPT = 256
"""Tokens to read from which on a prompt takes long enough for a bar."""


def console(*, stderr: bool = False) -> Console:
    """A console for sentences of any length; with ``NO_COLOR`` it writes no escape sequence, bold and dim included."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=True, highlight=False, force_terminal=False if wants_plain() else None)


@contextmanager
def progress_bar(total: int, title: str = "measuring") -> Iterator[Callable[[], None]]:
    """Gives a function to call after each answer; what is drawn is on a terminal's standard error only."""
    if not may_draw():
        tell_people(f"{title} ({total}) ...")
    done = 0
    with bar(title, total) as draw:

        def advance() -> None:
            nonlocal done
            done += 1
            draw(done)

        yield advance


@contextmanager
def byte_bar(title: str) -> Iterator[Draw]:
    """Gives a function to call with the bytes done and the bytes in all; drawn on a terminal's standard error only."""
    if not may_draw():
        tell_people(f"{title} ...")
    with bar(title, of="bytes") as draw:
        yield draw


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Gives a function to show what is being done, on a terminal's standard error only."""
    if not may_draw():
        yield lambda text: tell_people(f"{text} ...")
        return
    with console(stderr=True).status("starting") as line:
        yield line.update


class PromptBar:
    """How far the reading of a prompt has come, on a terminal's standard error only, and for long prompts only."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown
        self._open = ExitStack()
        self._draw: Draw | None = None

    def update(self, done: int, total: int) -> None:
        """So many of the prompt's tokens are read, or were there already; the bar goes away with the last."""
        if done >= total:
            self.close()
            return
        if self._draw is None:
            if not self._shown or total - done < LONG_PROMPT:
                return
            if not may_draw():
                self._shown = False  # once is enough
                tell_people(f"reading the prompt ({total - done} tokens) ...")
                return
            self._draw = self._open.enter_context(bar("reading the prompt", total, of="tokens"))
        self._draw(done)

    def close(self) -> None:
        """Take the bar away."""
        self._open.close()
        self._draw = None
