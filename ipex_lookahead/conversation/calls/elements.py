"""Calls as elements with one argument each, of text values: Qwen3-Coder's style, GLM's, MiniCPM5's, Muse-Glimmer's."""

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
from ipex_lookahead.conversation.calls.flow import JSON, Flow, Members, Reading, Write, quoted
from ipex_lookahead.conversation.calls.typed import schema_of, typed, types_of
from ipex_lookahead.conversation.calls.values import End, checked, value
from ipex_lookahead.conversation.thinking import MESSAGES
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
    between: tuple[str, ...] = ("\n",)
    """Text between two calls; marks in it are separate parts."""

    @abstractmethod
    def opened(self, name: str) -> list[str]:
        """Return the text before the arguments of a call; marks in it are separate parts."""

    def headed(self, name: str) -> list[str]:
        """Return the text up to the marker of a call, the marker included; marks in it are separate parts."""
        return [Own(self.markers[0])]

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

    def streamed(self, flow: Flow, key: str, root: Mapping[str, Any], write: Write) -> Reading:
        """Read the value of an argument, and its mark: text and JSON as they come, others when they have ended."""
        schema, mark, trimmed = schema_of(root, key), self.value_end[1], bool(self.value_end[0])
        types = types_of(schema, root)
        if types == frozenset({"string"}):
            write('"')
            yield from flow.verbatim(mark, lambda text: write(quoted(text)), trimmed=trimmed)
            write('"')
            return
        if types is not None and "string" not in types:
            kind = {"{": "object", "[": "array"}.get((yield from flow.sign()))
            if kind in types:
                yield from JSON.value(flow, write)
                yield from flow.either(mark)
                return
        text = yield from flow.until(mark)
        text = text.removeprefix("\n").removesuffix("\n") if trimmed else text
        write(as_json(typed({key: text}, root)[key]))

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
        more = "" if one else f" ({self._spelled(self.between, spell)} call)*"
        call = f"call: {spell(self.markers[0])} ({self._either(functions)}) {spell(self.end)}\n"
        return f"calls: call{more}\n{call}{self._rules(functions, spell)}"

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str | None:
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
            rules += self.valued(f"{rule}v{at}", schema_of(root, name), root, end, spell)
        if not names and root.get("additionalProperties", True) is not False:
            before, key, between = self._spelled(self.keyed("\0"), spell).partition("\\u0000")
            parts.append(f"{rule}p*")
            rules += f'{rule}p: {before}" KEY "{between} {rule}v{behind}\n' if key else ""
            rules += self.valued(f"{rule}v", root.get("additionalProperties", True), root, end, spell)
        closed = f" {json.dumps(self.closed)}" if self.closed else ""
        return f"{rule}: {self._spelled(self.opened(function['name']), spell)} {' '.join(parts)}{closed}\n" + rules

    def valued(self, rule: str, schema: Any, root: Mapping[str, Any], end: End, spell: Spell) -> str:
        """Return the rules of a value with its mark."""
        return value(rule, schema, root, end)

    def _spelled(self, parts: Sequence[str], spell: Spell) -> str:
        """Marks as tokens where they are some, in a grammar."""
        return " ".join(spell(part) for part in parts if part)

    def written(self, given: Any) -> str:
        """Return the text of an argument's value."""
        return given if isinstance(given, str) else as_json(given)

    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """See :class:`Style`."""
        found: list[str] = []
        space, mark, after = self.value_end
        for name, arguments in calls:
            found += [*(self.between if found else ()), *self.headed(name), *self.opened(name)]
            for key, given in arguments.items():
                found += [*self.keyed(key), self.written(given) + space, Own(mark), after]
            found += [self.closed, Own(self.end)]
        return found


class Coder(Elements):
    r"""``<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>``.

    Qwen3-Coder, Qwen3.5, Nemotron 3.
    """

    value_end = ("\n", "</parameter>", "\n")
    closed = "</function>\n"
    function = ("<function=", ">", "</function>")
    """Texts before a function's name, behind it, and after its arguments."""
    parameter = ("<parameter=", ">")
    """Texts before a parameter's name and behind it."""

    @staticmethod
    def _named(marks: Sequence[str]) -> re.Pattern[str]:
        """Match a name between two texts."""
        return re.compile(rf"\s*{re.escape(marks[0])}([^<>\n]+){re.escape(marks[1])}")

    def opened(self, name: str) -> list[str]:
        """See :class:`Elements`."""
        return [f"\n<function={name}>\n"]

    def keyed(self, key: str) -> list[str]:
        """See :class:`Elements`."""
        return [f"<parameter={key}>\n"]

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        while True:
            yield from flow.either(self.function[0])
            name = (yield from flow.until(self.function[1])).strip()
            flow.begin(name)
            flow.write("{")
            members = Members(flow)
            while (yield from flow.either(self.parameter[0], self.function[2])) == self.parameter[0]:
                key = (yield from flow.until(self.parameter[1])).strip()
                yield from self.streamed(flow, key, parameters_of(functions[name]), members.begin(key))
            flow.write("}")
            flow.end()

    def walked(self, body: str, functions: Functions, *, whole: bool) -> tuple[list[Named], int, bool]:
        """See :class:`Elements`. The end of the last function may be missing."""
        found: list[Named] = []
        at, trimmed = 0, bool(self.value_end[0])
        function, parameter = self._named(self.function), self._named(self.parameter)
        while (begun := function.match(body, at)) is not None:
            texts, at = Written(), begun.end()
            root = parameters_of(functions.get(begun[1].strip(), {}))
            while (key := parameter.match(body, at)) is not None:
                name = key[1].strip()
                text = self.value_at(body, key.end(), schema_of(root, name), root, whole=whole)
                if text is None:
                    return found, at, True
                texts.setdefault(name, text.removeprefix("\n").removesuffix("\n") if trimmed else text)
                at = key.end() + len(text) + len(self.value_end[1])
            rest = body[at:]
            if rest.lstrip().startswith(self.function[2]):
                at += len(rest) - len(rest.lstrip()) + len(self.function[2])
            found.append((begun[1].strip(), texts))
        return found, at, False


class Addressed(Coder):
    """Muse-Glimmer's: a call is a message of its own, to the function.

    ``<atem:function_calls>`` is text in it, and so are its ``<atem:invoke name="name">`` and, for each argument,
    ``<atem:parameter name="key">value</atem:parameter>``. The heads of messages are found by
    :class:`~ipex_lookahead.conversation.channels.Channels`; the parser sees what is behind them.
    """

    markers = ("<atem:function_calls>",)
    end = "</atem:function_calls>"
    inner = MESSAGES.spelled
    between = MESSAGES.turn
    value_end = ("", "</atem:parameter>", "\n")
    closed = "</atem:invoke>\n"
    function = ('<atem:invoke name="', '">', "</atem:invoke>")
    parameter = ('<atem:parameter name="', '">')

    def headed(self, name: str) -> list[str]:
        """See :class:`Elements`."""
        return [f" to={name}", Own(MESSAGES.label), self.markers[0]]

    def opened(self, name: str) -> list[str]:
        """See :class:`Elements`."""
        return [f'\n{self.function[0]}{name}">\n']

    def keyed(self, key: str) -> list[str]:
        """See :class:`Elements`."""
        return [f'{self.parameter[0]}{key}">']

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        calls = [
            f"{self._spelled(self.headed(function['name']), spell)} f{at} {spell(self.end)}"
            for at, function in enumerate(functions)
        ]
        more = "" if one else f" ({self._spelled(self.between, spell)} call)*"
        return f"calls: call{more}\ncall: {' | '.join(calls)}\n{self._rules(functions, spell)}"

    def at_will(self, functions: Sequence[Function], spell: Spell) -> None:
        """See :class:`Style`. Text in answers and thoughts may hold a call's marks."""

    @property
    def guarded(self) -> bool:
        """See :class:`Style`."""
        return False


class Keyed(Elements):
    """``<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>``: GLM 4.5 to 4.7.

    Args:
        gap: white space between the parts: a line's end up to GLM 4.6, then none.
    """

    inner = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    _PAIR = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>")

    def __init__(self, gap: str) -> None:
        self._gap = gap
        self.between = (gap,)
        self.value_end = ("", "</arg_value>", gap)

    def opened(self, name: str) -> list[str]:
        """See :class:`Elements`."""
        return [name + self._gap]

    def keyed(self, key: str) -> list[str]:
        """See :class:`Elements`."""
        return [Own("<arg_key>"), key, Own("</arg_key>"), self._gap, Own("<arg_value>")]

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        name = (yield from flow.until("<arg_key>")).strip()
        flow.begin(name)
        flow.write("{")
        members = Members(flow)
        while True:
            key = (yield from flow.until("</arg_key>")).strip()
            yield from flow.either("<arg_value>")
            yield from self.streamed(flow, key, parameters_of(functions[name]), members.begin(key))
            yield from flow.either("<arg_key>")

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
            texts.setdefault(key, text)
            at = pair.end() + len(text) + len(self.value_end[1])
        return [(name, texts)] if name else [], at, False


class Params(Elements):
    """``<function name="name"><param name="key">value</param></function>``: MiniCPM5.

    Texts may be CDATA sections, which the model writes round markup and several lines.
    """

    markers = ('<function name="',)
    end = "</function>"
    between = ("",)
    value_end = ("", "</param>", "")
    _NAME = re.compile(r'([^"<>\n]+)">')
    _PARAM = re.compile(r'\s*<param name="([^"<>\n]+)">')
    _OPEN, _CLOSED = "<![CDATA[", "]]>"

    def opened(self, name: str) -> list[str]:
        """See :class:`Elements`."""
        return [f'{name}">']

    def keyed(self, key: str) -> list[str]:
        """See :class:`Elements`."""
        return [f'<param name="{key}">']

    def written(self, given: Any) -> str:
        """See :class:`Elements`."""
        text = super().written(given)
        return f"{self._OPEN}{text}{self._CLOSED}" if isinstance(given, str) and set(text) & set("<&\n") else text

    def _bare(self, text: str) -> str:
        """Return a value without its section."""
        is_section = text.startswith(self._OPEN) and text.endswith(self._CLOSED)
        return text.removeprefix(self._OPEN).removesuffix(self._CLOSED) if is_section else text

    def valued(self, rule: str, schema: Any, root: Mapping[str, Any], end: End, spell: Spell) -> str:
        """See :class:`Elements`. A text is one of two: by itself, or in a section."""
        types = types_of(schema, root)
        if types is not None and "string" not in types:
            return value(rule, schema, root, end)
        mark = self._CLOSED + self.value_end[1]
        inside = value(f"{rule}c", schema, root, End(mark, spell(mark), ""))
        either = f"{rule}: {rule}t | {json.dumps(self._OPEN)} {rule}c\n"
        return either + value(f"{rule}t", schema, root, end) + inside

    def value_at(self, body: str, start: int, schema: Any, root: Mapping[str, Any], *, whole: bool) -> str | None:
        """See :class:`Elements`. A section may hold any mark but its own end; without one it is a text."""
        end = body.find(self._CLOSED + self.value_end[1], start) if body.startswith(self._OPEN, start) else -1
        if end >= 0:
            return body[start : end + len(self._CLOSED)]
        if body.startswith(self._OPEN, start) and not whole:
            return None
        return super().value_at(body, start, schema, root, whole=whole)

    def streamed(self, flow: Flow, key: str, root: Mapping[str, Any], write: Write) -> Reading:
        """See :class:`Elements`. Values other than text are read whole, for a section may hold the mark."""
        mark = self.value_end[1]
        if types_of(schema_of(root, key), root) == frozenset({"string"}):
            in_section = yield from flow.opens(self._OPEN)
            write('"')
            yield from flow.verbatim((self._CLOSED if in_section else "") + mark, lambda text: write(quoted(text)))
            write('"')
            return
        text = yield from flow.until(mark)
        while text.startswith(self._OPEN) and not text.endswith(self._CLOSED):
            text += mark + (yield from flow.until(mark))
        write(as_json(typed({key: self._bare(text)}, root)[key]))

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        name = (yield from flow.until('">')).strip()
        flow.begin(name)
        flow.write("{")
        members = Members(flow)
        while True:
            yield from flow.either('<param name="')
            key = (yield from flow.until('">')).strip()
            yield from self.streamed(flow, key, parameters_of(functions[name]), members.begin(key))

    def walked(self, body: str, functions: Functions, *, whole: bool) -> tuple[list[Named], int, bool]:
        """See :class:`Elements`."""
        begun = self._NAME.match(body)
        if begun is None:
            return [], 0, False
        name, texts, at = begun[1].strip(), Written(), begun.end()
        root = parameters_of(functions.get(name, {}))
        while (param := self._PARAM.match(body, at)) is not None:
            key = param[1].strip()
            text = self.value_at(body, param.end(), schema_of(root, key), root, whole=whole)
            if text is None:
                return [], at, True
            texts.setdefault(key, self._bare(text))
            at = param.end() + len(text) + len(self.value_end[1])
        return [(name, texts)], at, False
