"""How much longer a tokenizer may make a text: bounded before any of it is run.

A file describes its pipeline in parts, and parts multiply: ten that each write two letters for one make a thousand of
every letter. The library would run out of memory, which ends the process. Real tokenizers write "▁" for a space, which
is three bytes for one, put something before the text, and at most bring the text to one of Unicode's forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ipex_lookahead.errors import ModelFormatError

MOST_GROWTH = 16
"""Bytes for one that the parts of a file may come to, one after the other."""
MOST_ADDED = 4096
"""Bytes that they may add to a text however short."""
MOST_PARTS = 32
"""Each part is a pass over the whole text."""
MOST_AROUND = 64
"""Special tokens that may go round a text."""
LONGEST_SPELLED = 256
"""Characters of a token that Python looks for in a text: at every place it may have to try each shorter length."""
MOST_ADDED_TOKENS = 1 << 16
MOST_ADDED_CHARACTERS = 1 << 20
"""In all added tokens: the automaton that looks for them takes hundreds of bytes for each."""

_FORMS = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 2}
"""Bytes for one in the worst character (U+FDFA: 3 to 33). That growth is the text's own, so one pass is free."""

_TOKENS_PER_CHARACTER = 64
"""Above what any text comes to: U+FDFA in form KC, with "▁" for its spaces, is 39 bytes."""

Fail = Callable[[str, str], Exception]
"""From a field and a problem to the error to raise."""


def leaves(part: Mapping[str, Any] | None, members: str) -> Iterator[Mapping[str, Any]]:
    """The parts that are no sequence, in order; ``members`` is the key of a sequence's parts."""
    if part is not None:
        if part["type"] == "Sequence":
            for member in part[members]:
                yield from leaves(member, members)
        else:
            yield part


def check_growth(parts: Sequence[tuple[str, Mapping[str, Any]]], fail: Fail) -> None:
    """Raise what ``fail`` makes where parts may make a text too much longer.

    Args:
        parts: stage (for the message) and description of each, in the order in which they are run.
        fail: see ``Fail``.
    """
    factor, added, forms = 1.0, 0.0, "none yet"
    for count, (stage, part) in enumerate(parts, 1):
        name = part["type"]
        if count > MOST_PARTS:
            raise fail(stage, f"has more than {MOST_PARTS} parts")
        times, more = _growth(part)
        if name in _FORMS and forms != "over":
            times, forms = 1, "running"
        elif forms == "running":
            forms = "over"
        factor, added = factor * times, added * times + more
        if factor > MOST_GROWTH:
            problem = f"up to here the parts make a text up to {factor:.4g} times as long; {MOST_GROWTH} is the most"
            raise fail(f"{stage}.{name}", problem)
        if added > MOST_ADDED:
            raise fail(f"{stage}.{name}", f"up to here the parts add {added:.4g} bytes; {MOST_ADDED} are the most")


def _growth(part: Mapping[str, Any]) -> tuple[float, int]:
    """Most bytes for one byte, and bytes besides."""
    name = part["type"]
    if name == "Replace":
        pattern = part.get("pattern", {}).get("String", "?")  # an expression that matches nothing runs apart
        return max(1.0, _size(part.get("content", "")) / _size(pattern)), 0
    if name == "Prepend":
        return 1, _size(part.get("prepend", ""))
    if name == "Metaspace":  # one before every piece of the text, of which there may be as many as letters
        return 1 + _size(part.get("replacement", "▁")), 0
    if name == "ByteLevel":
        return 2 * (1 + bool(part.get("add_prefix_space", True))), 0
    return _FORMS.get(name, 1), 0


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


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
    return _TOKENS_PER_CHARACTER * len(text) + MOST_ADDED + MOST_AROUND


def check_ids(text: str, ids: Sequence[int]) -> None:
    """Raise ModelFormatError where a text has come to more tokens than any text may."""
    if len(ids) > (most := most_ids(text)):
        problem = f"made {len(ids)} tokens of {len(text)} characters; at most {most} are taken"
        raise ModelFormatError("tokenizer", "encoding", None, problem)
