"""What people read while something is fetched, on standard error."""

from __future__ import annotations

import sys


def note(shown: bool, text: str) -> None:
    """A line on standard error, where it is to be shown."""
    if shown:
        print(text, file=sys.stderr, flush=True)
