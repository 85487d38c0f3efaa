"""How much longer a tokenizer may make a text.

A file describes its pipeline in parts, and parts multiply: ten that each write two letters for one make a thousand of
every letter. The library would run out of memory, which ends the process. So only parts that write little, as those of
real tokenizers do, run in this process; others run in one of their own, where the memory is limited.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from ipex_lookahead.errors import ModelFormatError

MOST_GROWTH = 16
"""Bytes for one that the parts of a file may come to in this process, one after the other."""
MOST_WRITTEN = 4
"""Bytes for one that one of them may write."""
MOST_PREPENDED = 16
MOST_PARTS = 32
"""Each part is a pass over the whole text."""
MOST_ADDED = 4096
"""Tokens, or bytes, that may come beside those of the text itself."""
LONGEST_SPELLED = 256
"""Characters of a token that Python looks for in a text: at every place it may have to try each shorter length."""
MOST_ADDED_TOKENS = 1 << 16
MOST_ADDED_CHARACTERS = 1 << 20
"""In all added tokens: the automaton that looks for them takes hundreds of bytes for each."""

_log = logging.getLogger(__name__)
_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})

_TOKENS_PER_CHARACTER = 64
"""Above what any text comes to: U+FDFA in form KC, with "▁" for its spaces, is 39 bytes."""


def leaves(part: Mapping[str, Any] | None, members: str) -> Iterator[Mapping[str, Any]]:
    """The parts that are no sequence, in order; ``members`` is the key of a sequence's parts."""
    if part is not None:
        if part["type"] == "Sequence":
            for member in part[members]:
                yield from leaves(member, members)
        else:
            yield part


def stays_short(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether parts that are run one after the other make a text at most ``MOST_GROWTH`` times as long.

    Two may write up to four bytes for one, as "▁" for a space and GPT-2's letters for bytes do, and Unicode's forms go
    before them: their growth is the text's own. What else may be harmless runs in a process of its own.
    """
    longer = 0
    for part in parts:
        name = part["type"]
        if (written := _written(part)) > MOST_WRITTEN or (name in _FORMS and longer):
            return False
        longer += written > 1
    return longer <= 2 and len(parts) <= MOST_PARTS


def _written(part: Mapping[str, Any]) -> float:
    """The most bytes that a part writes for one."""
    name = part["type"]
    if name == "Replace":
        pattern = part.get("pattern", {}).get("String", "?")  # an expression that matches nothing runs apart
        return _size(part.get("content", "")) / _size(pattern)
    if name == "Prepend":  # once before a text
        return 1 if _size(part.get("prepend", "")) <= MOST_PREPENDED else MOST_GROWTH
    return MOST_WRITTEN if name in ("ByteLevel", "Metaspace") else 1


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def note_unproducible(file: str | PathLike[str], tokens: Iterable[str], rows: int) -> None:
    """Warn of added tokens whose ids are beyond a model's embedding of ``rows`` rows, as padding tokens often are.

    The model runs: no logit stands for them. A prompt that holds one is an error of the request.
    """
    if found := list(tokens):
        shown = ", ".join(repr(token[:40]) for token in found[:4]) + (", ..." if len(found) > 4 else "")
        _log.warning(
            "%s: the model's embedding has %d rows and none for %s: the model never generates such a token, and prompts"
            " must not hold one",
            file, rows, shown,
        )  # fmt: skip


def check_added(tokens: Sequence[str], longest: int, fail: Callable[[str], Exception]) -> None:
    """Raise what ``fail`` makes of a problem where tokens to look for in a text are too many or too long."""
    if len(tokens) > MOST_ADDED_TOKENS:
        raise fail(f"{len(tokens)} tokens are to be found as they are spelled; {MOST_ADDED_TOKENS} are the most")
    if any(len(token) > longest for token in tokens):
        raise fail(f"a token has {max(map(len, tokens))} characters; {longest} are the most")
    if (size := sum(map(len, tokens))) > MOST_ADDED_CHARACTERS:
        problem = f"tokens to be found as they are spelled have {size} characters; {MOST_ADDED_CHARACTERS} are the most"
        raise fail(problem)


def most_ids(text: str) -> int:
    """More tokens than any text of that length comes to."""
    return _TOKENS_PER_CHARACTER * len(text) + MOST_ADDED


def check_ids(text: str, ids: Sequence[int]) -> None:
    """Raise ModelFormatError where a text has come to more tokens than any text may."""
    if len(ids) > (most := most_ids(text)):
        problem = f"made {len(ids)} tokens of {len(text)} characters; at most {most} are taken"
        raise ModelFormatError("tokenizer", "encoding", None, problem)
