"""The bytes that each token stands for, which grammars and ``logprobs`` need: a token need not be whole characters."""

from __future__ import annotations

import re

from ipex_lookahead.tokenization.text import TextTokenizer

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


def _byte_level() -> dict[str, int]:
    """GPT-2's character for each byte: printable ones as they are, the others from U+0100 on, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
