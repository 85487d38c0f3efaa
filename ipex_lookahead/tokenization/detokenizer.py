"""The text of tokens as they come."""

from __future__ import annotations

from typing import Any

_UNFINISHED = "\ufffd"
_PATIENCE = 64


class Detokenizer:
    """Turns token ids into text one by one, special tokens left out.

    A character whose last byte has not come yet is held back, so all pieces together are the text of all ids. Only a
    few ids are decoded anew each time: from the last place at which the text was whole.

    Args:
        tokenizer: a ``TextTokenizer`` or a ``transformers`` tokenizer.
        silent: ids that are left out; None = those of the special tokens.
    """

    def __init__(self, tokenizer: Any, silent: frozenset[int] | None = None) -> None:
        self._decode = tokenizer.decode
        if silent is None:
            silent = getattr(tokenizer, "silent_ids", None)
        self._silent = frozenset(tokenizer.all_special_ids) if silent is None else silent
        self._ids: list[int] = []
        self._shown_ids = 0
        self._shown = ""

    def put(self, token: int) -> str:
        """The text that this token finishes; "" for a special one, and inside a character."""
        if token in self._silent:
            return ""
        self._ids.append(token)
        text = str(self._decode(self._ids))
        if text.endswith(_UNFINISHED) and len(self._ids) - self._shown_ids < _PATIENCE:
            return ""
        return self._finish(text)

    def end(self) -> str:
        """What was held back."""
        text = self._finish(str(self._decode(self._ids))) if len(self._ids) > self._shown_ids else ""
        self._ids, self._shown_ids, self._shown = [], 0, ""
        return text

    def _finish(self, text: str) -> str:
        """Keep the ids of the new text: a decoder may write the first token of what it gets differently."""
        new = text[len(self._shown) :]
        self._ids = self._ids[self._shown_ids :]
        self._shown_ids = len(self._ids)
        self._shown = str(self._decode(self._ids))
        return new
