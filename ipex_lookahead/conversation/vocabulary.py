"""The bytes that each token stands for, which grammars and ``logprobs`` need: a token need not be whole characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import cached_property

from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.tokenization.text import TextTokenizer

_LEAD = "\n"
"""A text in front of which a SentencePiece model puts its space, so that the text behind has none."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


def token_bytes(tokenizer: TextTokenizer, size: int) -> list[bytes]:
    """For each id below ``size`` its bytes; b"" for ids without a token.

    Three kinds of vocabularies are distinguished: pieces with ``<0x00>`` to ``<0xFF>`` for bytes and ▁ for a space
    (SentencePiece's, and Gemma's in the other library), GPT-2's printable characters for bytes, and plain text.
    Special tokens are their spelling.
    """
    vocabulary = tokenizer.get_vocab()
    special = tokenizer.silent_ids | frozenset(tokenizer.all_special_ids)
    ordinary = [text for text, i in vocabulary.items() if i not in special]
    pieces = sum(_BYTE.fullmatch(text) is not None for text in ordinary) == 256
    alphabet = {} if pieces else _byte_level()
    known = frozenset(alphabet)
    byte_level = not pieces and sum(known.issuperset(text) for text in ordinary) > len(ordinary) // 2
    found = [b""] * size
    for text, i in vocabulary.items():
        if not 0 <= i < size:
            continue
        if i in special:
            found[i] = text.encode("utf-8", "replace")
        elif pieces:
            byte = _BYTE.fullmatch(text)
            found[i] = bytes([int(byte[1], 16)]) if byte else text.replace(_SPACE, " ").encode("utf-8", "replace")
        elif byte_level and known.issuperset(text):
            found[i] = bytes(alphabet[character] for character in text)
        else:
            found[i] = text.encode("utf-8", "replace")
    return found


def control_ids(tokenizer: TextTokenizer) -> frozenset[int]:
    """Return the ids of tokens that no text stands for, however it is spelled."""
    vocabulary = tokenizer.get_vocab()
    added = (vocabulary.get(text) for text, special in tokenizer.added_tokens.items() if special)
    return tokenizer.silent_ids | frozenset(tokenizer.all_special_ids) | {i for i in added if i is not None}


class TextVocabulary:
    """A vocabulary as llguidance reads it: a grammar's text is written with ordinary tokens only.

    llguidance calls it with text that a grammar leaves no choice about, and allows only the ids that come back. Ids
    that are other bytes than the text would lead out of the grammar.

    Args:
        tokens: bytes of each token, by id; b"" for ids without one.
        ends: ids that end an answer.
        control: ids of tokens that no text stands for.
        encode: text -> ids, without bos and eos.
    """

    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        ends: Sequence[int],
        control: Collection[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = list(tokens)
        self.eos_token_id = ends[0]
        self.special_token_ids = sorted(control)
        self._control = frozenset(control)
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        """Return ids with the bytes of the text: the tokenizer's own split where it is one, else the longest tokens."""
        wanted = text.encode() if isinstance(text, str) else text
        given = wanted.decode("utf-8", "replace")
        for lead in ("", _LEAD):  # a SentencePiece model writes a space before what it takes for a text's beginning
            try:
                ids = self._encode(lead + given)
            except LookaheadError:  # the tokenizer's process has ended
                break
            if (found := self._behind(lead.encode(), ids, wanted)) is not None:
                return found
        return self._longest(wanted)

    def _behind(self, lead: bytes, ids: Sequence[int], wanted: bytes) -> list[int] | None:
        """The ids at the end of ``ids`` that are ``wanted``; None where no token begins with it."""
        if not all(0 <= i < len(self.tokens) and i not in self._control for i in ids):
            return None
        at, left = len(ids), len(wanted)
        while left > 0 and at > 0:
            at -= 1
            left -= len(self.tokens[ids[at]])
        found = list(ids[at:])
        before = b"".join(self.tokens[i] for i in ids[:at])
        whole = left == 0 and b"".join(self.tokens[i] for i in found) == wanted
        return found if whole and before in ((lead, b" " + lead) if lead else (b"",)) else None

    def _longest(self, wanted: bytes) -> list[int]:
        """The longest tokens in order, up to the first byte that no token begins with."""
        found: list[int] = []
        at = 0
        while at < len(wanted):
            parts = (wanted[at : at + length] for length in range(min(self._most, len(wanted) - at), 0, -1))
            part = next((part for part in parts if part in self._ids), None)
            if part is None:
                break
            found.append(self._ids[part])
            at += len(part)
        return found

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {text: i for i, text in enumerate(self.tokens) if text and i not in self._control}

    @cached_property
    def _most(self) -> int:
        return max(map(len, self._ids), default=0)


def _byte_level() -> dict[str, int]:
    """GPT-2's character for each byte: printable ones as they are, the others from U+0100 on, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
