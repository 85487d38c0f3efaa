"""Calls as elements with one argument each and text values: the styles of Qwen3-Coder and GLM."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ipex_lookahead.conversation.calls.base import (
    DECODER,
    Function,
    Functions,
    Named,
    Spell,
    Style,
    Written,
    anywhere,
    as_json,
    in_text,
    parameters_of,
)
from ipex_lookahead.conversation.calls.typed import schema_of, types_of
from ipex_lookahead.conversation.calls.values import End, checked, value
from ipex_lookahead.errors import InputError
from ipex_lookahead.tokenization.content import Own

_KEY = "KEY: /[A-Za-z_][A-Za-z0-9_.-]{0,63}/\n"


class Elements(Style):
    """What both have: a tag round the call, the function's name, and an element for each argument.

    A grammar has the arguments in the order of the schema, as one of JSON has: others than those that it names only
    where it names none.
    """

    markers = ("<tool_call>",)
    end = "</tool_call>"
    between = "\n"
    """Text between two calls."""

    @abstractmethod
    def opened(self, name: str) -> list[str]:
        """Return the text before the arguments of a call; marks in it are separate parts."""

    @abstractmethod
    def keyed(self, key: str) -> list[str]:
        """Return the text before an argument's value."""

    value_end: tuple[str, str, str]
    """Text after a value: white space, the mark, white space."""
    closed = ""
    """Text after the arguments."""

    @abstractmethod
    def walked(self, body: str, functions: Functions, *, whole: bool) -> tuple[list[Named], int, bool]:
        """Return the calls in ``body``, up to where they go, and whether it ends inside a value.

        ``whole``: nothing comes behind it.
        """

    def calls(self, body: str, functions: Functions) -> list[Named] | None:
        """See :class:`Style`."""
        found, at, inside = self.walked(body, functions, whole=True)
        return None if inside or not found or body[at:].strip() else found

    def holds(self, body: str, functions: Functions) -> bool:
        """See :class:`Style`."""
        return self.walked(body, functions, whole=False)[2]

    def value_at(self, body: str, start: int, schema: Any, root: Mapping[str, Any], *, whole: bool) -> str | None:
        """Return the value that begins at ``start``, up to the mark that ends it; None where that has not come.

        In a list or an object, which are JSON, texts may hold the mark; nothing else may.
        """
        mark = self.value_end[1]
        end = body.find(mark, start)
        types = types_of(schema, root)
        if end < 0 or types is None or "string" in types or not body[start:end].lstrip().startswith(("{", "[")):
            return body[start:end] if end >= 0 else None
        try:
            stop = DECODER.raw_decode(body, len(body) - len(body[start:].lstrip()))[1]
        except (ValueError, RecursionError):
            return None if not whole and in_text(body[start:]) else body[start:end]
        behind = body.find(mark, stop)
        if behind < 0 and not body[stop:].strip():
            return None
        return body[start:behind] if behind >= 0 and not body[stop:behind].strip() else body[start:end]

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        more = "" if one else f" ({json.dumps(self.between) if self.between else ''} call)*"
        call = f"call: {spell(self.markers[0])} ({self._either(functions)}) {spell(self.end)}\n"
        return f"calls: call{more}\n{call}{self._rules(functions, spell)}"

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str:
        """See :class:`Style`."""
        behind = f"({self._either(functions)}) {spell(self.end)}"
        return anywhere(self.markers[0], spell, behind) + self._rules(functions, spell)

    @staticmethod
    def _either(functions: Sequence[Function]) -> str:
        return " | ".join(f"f{at}" for at in range(len(functions)))

    def _rules(self, functions: Sequence[Function], spell: Spell) -> str:
        return "".join(self._function(f"f{at}", function, spell) for at, function in enumerate(functions)) + _KEY

    def _function(self, rule: str, function: Function, spell: Spell) -> str:
        """The rules of a call of one function, behind the marker."""
        root = checked(parameters_of(function))
        space, mark, after = self.value_end
        end = End(mark, spell(mark), space)
        behind = f" {json.dumps(after)}" if after else ""
        required = root.get("required") or ()
        names = dict.fromkeys([*root.get("properties", {}), *required])
        parts, rules = [], ""
        for at, name in enumerate(names):
            if not name.strip() or name != name.strip() or set(name) & set("<>\n"):
                raise InputError(f"the grammar cannot be compiled: the parameter name {name[:80]!r} is invalid")
            parts.append(f"{rule}p{at}{'' if name in required else '?'}")
            rules += f"{rule}p{at}: {self._spelled(self.keyed(name), spell)} {rule}v{at}{behind}\n"
            rules += value(f"{rule}v{at}", schema_of(root, name), root, end)
        if not names and root.get("additionalProperties", True) is not False:
            before, key, between = self._spelled(self.keyed("\0"), spell).partition("\\u0000")
            parts.append(f"{rule}p*")
            rules += f'{rule}p: {before}" KEY "{between} {rule}v{behind}\n' if key else ""
            rules += value(f"{rule}v", root.get("additionalProperties", True), root, end)
        closed = f" {json.dumps(self.closed)}" if self.closed else ""
        return f"{rule}: {self._spelled(self.opened(function['name']), spell)} {' '.join(parts)}{closed}\n" + rules

    def _spelled(self, parts: Sequence[str], spell: Spell) -> str:
        """Marks as tokens where they are some, in a grammar."""
        return " ".join(spell(part) for part in parts if part)

    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """See :class:`Style`."""
        found: list[str] = []
        space, mark, after = self.value_end
        for name, arguments in calls:
            found += [*([self.between] if found else []), Own(self.markers[0]), *self.opened(name)]
            for key, given in arguments.items():
                written = given if isinstance(given, str) else as_json(given)
                found += [*self.keyed(key), written + space, Own(mark), after]
            found += [self.closed, Own(self.end)]
        return found


class Coder(Elements):
    r"""``<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>``.

    Qwen3-Coder, Qwen3.5, Nemotron 3.
    """

    value_end = ("\n", "</parameter>", "\n")
    closed = "</function>\n"
    _FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
    _PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")

    def opened(self, name: str) -> list[str]:
        """See :class:`Elements`."""
        return [f"\n<function={name}>\n"]

    def keyed(self, key: str) -> list[str]:
        """See :class:`Elements`."""
        return [f"<parameter={key}>\n"]

    def walked(self, body: str, functions: Functions, *, whole: bool) -> tuple[list[Named], int, bool]:
        """See :class:`Elements`. The end of the last function may be missing."""
        found: list[Named] = []
        at = 0
        while (begun := self._FUNCTION.match(body, at)) is not None:
            texts, at = Written(), begun.end()
            root = parameters_of(functions.get(begun[1].strip(), {}))
            while (key := self._PARAMETER.match(body, at)) is not None:
                name = key[1].strip()
                text = self.value_at(body, key.end(), schema_of(root, name), root, whole=whole)
                if text is None:
                    return found, at, True
                texts[name] = text.removeprefix("\n").removesuffix("\n")
                at = key.end() + len(text) + len(self.value_end[1])
            rest = body[at:]
            if rest.lstrip().startswith("</function>"):
                at += len(rest) - len(rest.lstrip()) + len("</function>")
            found.append((begun[1].strip(), texts))
        return found, at, False


class Keyed(Elements):
    """``<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>``: GLM 4.5 to 4.7.

    Args:
        gap: white space between the parts: a line's end up to GLM 4.6, then none.
    """

    inner = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    _PAIR = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>")

    def __init__(self, gap: str) -> None:
        self._gap = gap
        self.between = gap
        self.value_end = ("", "</arg_value>", gap)

    def opened(self, name: str) -> list[str]:
        """See :class:`Elements`."""
        return [name + self._gap]

    def keyed(self, key: str) -> list[str]:
        """See :class:`Elements`."""
        return [Own("<arg_key>"), key, Own("</arg_key>"), self._gap, Own("<arg_value>")]

    def walked(self, body: str, functions: Functions, *, whole: bool) -> tuple[list[Named], int, bool]:
        """See :class:`Elements`."""
        before, _, _ = body.partition("<arg_key>")
        name, texts, at = before.strip(), Written(), len(before)
        root = parameters_of(functions.get(name, {}))
        while (pair := self._PAIR.match(body, at)) is not None:
            key = pair[1].strip()
            text = self.value_at(body, pair.end(), schema_of(root, key), root, whole=whole)
            if text is None:
                return [], at, True
            texts[key] = text
            at = pair.end() + len(text) + len(self.value_end[1])
        return [(name, texts)] if name else [], at, False
