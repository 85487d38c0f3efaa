"""The answer as it comes: its text shown, its tokens kept, also when it is interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ipex_lookahead.cli.wrapping import WordWrap
from ipex_lookahead.system.terminal import is_terminal
from ipex_lookahead.tokenization.detokenizer import Detokenizer

_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def show(part: str, wrap: WordWrap | None = None) -> None:
    """Write to standard output at once, through ``wrap`` if given.

    On a terminal, control characters are left out: a model may not steer it.
    """
    part = printable(part) if is_terminal(sys.stdout) else part
    if wrap is not None:
        wrap.put(part)
    else:
        sys.stdout.write(part)
    sys.stdout.flush()


def printable(part: str) -> str:
    """The text without control characters, line ends and tabs excepted."""
    return part.translate(_CONTROL)


class Answer:
    """What the model has said so far.

    Args:
        tokenizer: the model's.
        write: gets the text, piece by piece.

    Attributes:
        ids: the generated token ids.
        text: their text as far as it was written; special tokens left out.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self.ids: list[int] = []
        self.text = ""
        self._detokenizer = Detokenizer(tokenizer)
        self._write = write

    def put(self, token: int) -> None:
        """Take the next token."""
        self.ids.append(token)
        self._say(self._detokenizer.put(token))

    def end(self) -> None:
        """Write what was held back for a character that did not come to its end."""
        self._say(self._detokenizer.end())

    def _say(self, text: str) -> None:
        self.text += text
        if text:
            self._write(text)
