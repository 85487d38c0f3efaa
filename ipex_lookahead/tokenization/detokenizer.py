"""Streaming detokenization."""

from __future__ import annotations

from typing import Any

_UNFINISHED = "\ufffd"
_PATIENCE = 64


class Detokenizer:
    """Converts token ids to text one by one, without special tokens.

    The text of an incomplete character is delayed, so that the pieces together are the text of all ids. Each call
    decodes only the ids since the last complete text.

    Args:
        tokenizer: A ``TextTokenizer`` or a tokenizer of transformers.
        silent: Ids to skip; by default those of special tokens.
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
        """Return the text that is complete with this token; "" for a special one, or inside a character."""
        if token in self._silent:
            return ""
        self._ids.append(token)
        text = str(self._decode(self._ids))
        if text.endswith(_UNFINISHED) and len(self._ids) - self._shown_ids < _PATIENCE:
            return ""
        return self._finish(text)

    def end(self) -> str:
        """Return the delayed text."""
        text = self._finish(str(self._decode(self._ids))) if len(self._ids) > self._shown_ids else ""
        self._ids, self._shown_ids, self._shown = [], 0, ""
        return text

    def _finish(self, text: str) -> str:
        """Return the new text and keep its ids, because a decoder may treat the first token differently."""
        new = text[len(self._shown) :]
        self._ids = self._ids[self._shown_ids :]
        self._shown_ids = len(self._ids)
        self._shown = str(self._decode(self._ids))
        return new
