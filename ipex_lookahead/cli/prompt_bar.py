"""What is shown while a long prompt is read."""

from __future__ import annotations

from contextlib import ExitStack

from ipex_lookahead.system.terminal import Draw, bar, may_draw, tell_people

LONG_PROMPT = 256
"""Tokens to read from which on a prompt takes long enough for a bar."""


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
