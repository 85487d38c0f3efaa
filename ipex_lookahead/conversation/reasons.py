"""Why llguidance refuses a grammar: the construct and the cause, without the library's inner states."""

from __future__ import annotations

import re

MAX_LENGTH = 2000
"""Characters of a reason; a pattern in it is as long as its request has made it."""
_REGEX = "regex parse error:"
_CAUSE = "error: "
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_WRAPPED = ("failed to compile JSON schema: ", 'failed to parse "%json": ')
_INVALID = re.compile(r"^(.*?)invalid regex \"(.*)\" \(in regex\): $")
_STATES = re.compile(r":\s+\([A-Z].*$")
_SOURCE = re.compile(r"\S*/\S+\.rs\b[\d:]*")


def reason(error: object) -> str:
    """Return an error message of the library: "line L, column C: " where it has a place, then the cause."""
    lines = str(error).split("\n")
    said = _PLACE.sub(r"line \1, column \2: ", lines[0])
    for words in _WRAPPED:
        said = said.replace(words, "")
    said = _of_pattern(said.removesuffix(_REGEX), lines[1:]) if said.endswith(_REGEX) else _STATES.sub("", said)
    said = " ".join(_SOURCE.sub("", said).split())
    return said if len(said) <= MAX_LENGTH else said[:MAX_LENGTH] + "..."


def _of_pattern(before: str, lines: list[str]) -> str:
    """The pattern and what is wrong with it: the library shows it with a mark below, then the cause."""
    whole = _INVALID.match(before)
    shown = lines[0].strip() if lines else ""
    pattern = whole[2] if whole else "" if shown.startswith("~") else shown
    cause = next(
        (line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)), "it is not a valid regular expression"
    )
    place = whole[1] if whole else before
    return f"{place}pattern {pattern}: {cause}" if pattern else f"{place}a pattern: {cause}"


_LINE = re.compile(r"line (\d+), (column \d+: )")


def without_place(said: str) -> str:
    """A reason without its place, which is one in a text that the program itself has written."""
    return _LINE.sub("", said, count=1)


def placed(said: str, lines: list[int]) -> str:
    """A reason with its place in the caller's text; ``lines`` has the number there of each line in the library's."""

    def moved(found: re.Match[str]) -> str:
        at = int(found[1])
        return f"line {lines[at - 1]}, {found[2]}" if 0 < at <= len(lines) else ""

    return _LINE.sub(moved, said, count=1)
