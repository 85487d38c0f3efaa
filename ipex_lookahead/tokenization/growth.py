"""Limits on the growth of a text in a tokenizer.

A file describes its pipeline in parts, and their growth multiplies: ten parts that double each letter make a thousand
of one. The library would exhaust the memory and end the process. Therefore only parts with a small growth, as in real
tokenizers, run in this process; others run in a process with limited memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from ipex_lookahead.errors import ModelFormatError

MOST_GROWTH = 16
"""Maximum growth in bytes of all parts of a file together, in this process."""
MOST_WRITTEN = 4
"""Maximum growth of one part."""
MOST_PREPENDED = 16
MOST_PARTS = 32
"""Each part is a pass over the whole text."""
MOST_ADDED = 4096
"""Maximum number of tokens or bytes in addition to those of the text."""
LONGEST_SPELLED = 256
"""Maximum characters of a token that Python searches for: it may try every shorter length at every position."""
MOST_ADDED_TOKENS = 1 << 16
MOST_ADDED_CHARACTERS = 1 << 20
"""Maximum total length of added tokens: the automaton that finds them takes hundreds of bytes per character."""

_log = logging.getLogger(__name__)
_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "BertNormalizer", "Precompiled"})

_TOKENS_PER_CHARACTER = 64
"""An upper bound: U+FDFA in form KC, with "▁" for its spaces, has 39 bytes."""


def leaves(part: Mapping[str, Any] | None, members: str) -> Iterator[Mapping[str, Any]]:
    """Yield the parts that are not sequences; ``members`` is the key of the parts of a sequence."""
    if part is not None:
        if part["type"] == "Sequence":
            for member in part[members]:
                yield from leaves(member, members)
        else:
            yield part


def stays_short(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if consecutive parts make a text at most ``MOST_GROWTH`` times as long.

    Two parts may write up to four bytes for one, such as "▁" for a space and GPT-2's letters for bytes. Unicode forms
    must be before them. Other combinations may be harmless, but run in another process.
    """
    longer = 0
    for part in parts:
        name = part["type"]
        if (written := _written(part)) > MOST_WRITTEN or (name in _FORMS and longer):
            return False
        longer += written > 1
    return longer <= 2 and len(parts) <= MOST_PARTS


def _written(part: Mapping[str, Any]) -> float:
    """Return the maximum growth of a part."""
    name = part["type"]
    if name == "Replace":
        pattern = part.get("pattern", {}).get(
            "String", "?"
        )  # an expression with an empty match runs in another process
        return _size(part.get("content", "")) / _size(pattern)
    if name == "Prepend":  # once before a text
        return 1 if _size(part.get("prepend", "")) <= MOST_PREPENDED else MOST_GROWTH
    return MOST_WRITTEN if name in ("ByteLevel", "Metaspace") else 1


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def note_unproducible(file: str | PathLike[str], tokens: Iterable[str], rows: int) -> None:
    """Warn of added tokens with ids beyond a model's embedding of ``rows`` rows, such as padding tokens.

    The model has no logits for them. A prompt with such a token is an error of the request.
    """
    if found := list(tokens):
        shown = ", ".join(repr(token[:40]) for token in found[:4]) + (", ..." if len(found) > 4 else "")
        _log.warning(
            "%s: the model's embedding has %d rows and none for %s: the model never generates such a token, and prompts"
            " must not hold one",
            file, rows, shown,
        )  # fmt: skip


def check_added(tokens: Sequence[str], longest: int, fail: Callable[[str], Exception]) -> None:
    """Raise ``fail(problem)`` if there are too many added tokens, or they are too long."""
    if len(tokens) > MOST_ADDED_TOKENS:
        raise fail(f"{len(tokens)} added tokens; at most {MOST_ADDED_TOKENS} are allowed")
    if any(len(token) > longest for token in tokens):
        raise fail(f"a token has {max(map(len, tokens))} characters; at most {longest} are allowed")
    if (size := sum(map(len, tokens))) > MOST_ADDED_CHARACTERS:
        problem = f"added tokens have {size} characters in total; at most {MOST_ADDED_CHARACTERS} are allowed"
        raise fail(problem)


def most_ids(text: str) -> int:
    """Return an upper bound of the number of tokens of a text."""
    return _TOKENS_PER_CHARACTER * len(text) + MOST_ADDED


def check_ids(text: str, ids: Sequence[int]) -> None:
    """Raise ModelFormatError if a text has more tokens than its upper bound."""
    if len(ids) > (most := most_ids(text)):
        problem = f"made {len(ids)} tokens of {len(text)} characters; at most {most} are allowed"
        raise ModelFormatError("tokenizer", "encoding", None, problem)
