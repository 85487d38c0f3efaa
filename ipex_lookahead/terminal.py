"""What is for people at a terminal: whether something may be drawn there, and sentences that no pipe is told."""

from __future__ import annotations

import os
import sys
from typing import TextIO


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
    """Say on standard error what is being waited for; a pipe or a file is told nothing."""
    if is_terminal(sys.stderr):
        print(sentence, file=sys.stderr, flush=True)


def counted(number: int, thing: str) -> str:
    """``1 prompt``, ``2 prompts``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
