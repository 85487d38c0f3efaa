"""A streamer that shows the text as it comes and keeps what came, also when it is interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from transformers import TextStreamer

_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def show(part: str) -> None:
    """Write to standard output at once. On a terminal, control characters are left out: a model may not steer it."""
    sys.stdout.write(printable(part) if sys.stdout.isatty() else part)
    sys.stdout.flush()


def printable(part: str) -> str:
    """The text without control characters, line ends and tabs excepted."""
    return part.translate(_CONTROL)


class Answer(TextStreamer):  # type: ignore[misc]
    """What the model has said so far.

    Attributes:
        ids: the generated token ids.
        text: their text as far as it was shown; special tokens left out.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.ids: list[int] = []
        self.text = ""
        self._write = write
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """Take the prompt first, then tokens: a tensor [n] or [1, n], as ``generate`` hands them out."""
        if self._prompt_seen:
            self.ids += value.reshape(-1).tolist()
        self._prompt_seen = True
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Show text that no later token can change."""
        self.text += text
        if text:
            self._write(text)
