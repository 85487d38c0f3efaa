"""Values as JSON has them, but with bare keys, and with a mark round texts in which nothing is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ipex_lookahead.conversation.calls.base import DECODER, as_json
from ipex_lookahead.conversation.calls.scanner import MOST_DEEP, Scanner
from ipex_lookahead.errors import InputError
from ipex_lookahead.tokenization.content import Own

QUOTE = '<|"|>'
_KEY = re.compile(r'[^\s:,{}\[\]"](?:[^:,{}\[\]]*[^\s:,{}\[\]])?')
_WORD = re.compile(r"[A-Za-z]+")
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
"""JSON's, and Python's, which the first templates wrote."""


def written(value: Any, depth: int = 0) -> list[str]:
    """A value in parts; marks are ``Own``. Raises InputError where it is nested more deeply than is read."""
    if depth > MOST_DEEP:
        raise InputError(f"the arguments of a call are nested more than {MOST_DEEP} deep")
    if isinstance(value, str):
        return [Own(QUOTE), value, Own(QUOTE)]
    if isinstance(value, Mapping):
        pairs = [[*keyed(key), ":", *written(value[key], depth + 1)] for key in ordered(value)]
        return ["{", *_with_commas(pairs), "}"]
    if isinstance(value, list):
        return ["[", *_with_commas([written(one, depth + 1) for one in value]), "]"]
    return [as_json(value)]


def keyed(key: str) -> list[str]:
    """A key in parts: bare as in the template, between marks where it could not be read back so."""
    return [key] if _KEY.fullmatch(key) and "<" not in key else [Own(QUOTE), key, Own(QUOTE)]  # "<" begins marks


def ordered(keys: Iterable[str]) -> list[str]:
    """Keys as Jinja's ``dictsort`` has them."""
    return sorted(keys, key=str.lower)


def _with_commas(parts: Sequence[Sequence[str]]) -> list[str]:
    return [one for at, part in enumerate(parts) for one in ([",", *part] if at else part)]


class Reader(Scanner):
    """Reads such values from a text. Raises ValueError where something else comes."""

    def mapping(self) -> dict[str, Any]:
        """An object."""
        self.taken("{")
        return self._mapping(0)

    def _value(self, depth: int) -> Any:
        if depth > MOST_DEEP:
            raise ValueError("nested too deeply")
        if self.next(QUOTE):
            return self._marked()
        if self.next("{"):
            return self._mapping(depth)
        if self.next("["):
            return self._list(depth)
        if self._text[self.at : self.at + 1].isalpha():
            word = self.matched(_WORD)[0]
            if word not in WORDS:
                raise ValueError(word)
            return WORDS[word]
        found, self.at = DECODER.raw_decode(self._text, self.at)  # a number, or a text in quotes as models write too
        return found

    def _marked(self) -> str:
        """The text up to the next mark, verbatim: nothing in it is escaped."""
        end = self._text.index(QUOTE, self.at)
        found, self.at = self._text[self.at : end], end + len(QUOTE)
        return found

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self.next("]"):
            if found:
                self.taken(",")
            found.append(self._value(depth + 1))
        return found

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self.next("}"):
            if found:
                self.taken(",")
            key = self._key()
            self.taken(":")
            value = self._value(depth + 1)
            found.setdefault(key, value)
        return found

    def _key(self) -> str:
        if self.next(QUOTE):
            return self._marked()
        if self._text[self.at : self.at + 1] == '"':
            key, self.at = DECODER.raw_decode(self._text, self.at)
            return str(key)
        return self.matched(_KEY)[0]
