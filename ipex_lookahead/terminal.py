"""Whether something may be drawn: on a terminal, and where its user has not asked for plain text."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def wants_plain() -> bool:
    """``NO_COLOR`` is set, or the terminal is a dumb one: no escape sequence is written, of whatever kind."""
    return os.environ.get("NO_COLOR", "") != "" or os.environ.get("TERM") == "dumb"


def may_draw(stream: TextIO | None = None) -> bool:
    """Whether ``stream``, standard error if None, is a terminal that takes bars and spinners."""
    stream = sys.stderr if stream is None else stream
    return stream is not None and not stream.closed and stream.isatty() and not wants_plain()
