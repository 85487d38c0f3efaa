"""Calls as a list of Python's: ``[name(key="value", other=[1, 2])]``, LFM2's way."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ipex_lookahead.conversation.calls.base import (
    DECODER,
    JSON_TEXT,
    Function,
    Functions,
    Named,
    Spell,
    Style,
    anywhere,
    as_json,
    in_text,
    json_of,
    nearest_float,
    parameters_of,
)
from ipex_lookahead.conversation.calls.flow import Flow, Members, Reading, Values, Write, call_list, quoted, surrogates
from ipex_lookahead.conversation.calls.json_calls import SPACE, all_named, first_of, list_of
from ipex_lookahead.conversation.calls.scanner import MOST_DEEP, Scanner
from ipex_lookahead.conversation.calls.typed import resolved, schema_of, types_of
from ipex_lookahead.conversation.calls.values import checked
from ipex_lookahead.conversation.grammar import inlined
from ipex_lookahead.conversation.references import with_root
from ipex_lookahead.errors import InputError
from ipex_lookahead.tokenization.content import Own

_NAME = re.compile(r"[A-Za-z0-9_.-]+(?=\s*\()")
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=\s*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'', re.DOTALL)
_TEXTS = re.compile(rf"{JSON_TEXT}|'(?:[^'\\]|\\.)*\\?('?)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*)?\.?\d+(?:[eE][+-]?\d+)?")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_WORD = re.compile(r"[A-Za-z]+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|\n|.)", re.DOTALL)
_HEX = frozenset("0123456789abcdefABCDEF")
_CHUNKS = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": "", "0": "\0"}
_LIST = re.compile(r"\s*\[\s*(?=\{)")


class Pythonic(Style):
    """``<|tool_call_start|>[name(key="value")]<|tool_call_end|>``, or a list of JSON between both: LFM2 and LFM2.5."""

    markers = ("<|tool_call_start|>",)
    end = "<|tool_call_end|>"

    def calls(self, body: str, functions: Functions) -> list[Named] | None:
        """See :class:`Style`."""
        whole = json_of(body)
        if whole is not None:
            return all_named(whole if isinstance(whole, list) else [whole])
        reader = _Reader(body)
        try:
            return reader.list_of_calls()
        except ValueError:
            return None

    def holds(self, body: str, functions: Functions) -> bool:
        """See :class:`Style`."""
        return in_text(body, _TEXTS)

    def first(self, body: str) -> tuple[Named, str] | None:
        """See :class:`Style`."""
        if (whole := first_of(body, _LIST, "arguments")) is not None:
            return whole
        reader = _Reader(body)
        try:
            reader.taken("[")
            found = reader.call()
        except ValueError:
            return None
        return found, body[: reader.at]

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        yield from flow.either("[")
        if (yield from flow.sign()) == "{":
            yield from call_list(flow)
            return
        more = ","
        while more == ",":
            flow.begin((yield from flow.until("(")).strip())
            flow.write("{")
            members = Members(flow)
            ended = (yield from flow.sign()) == ")"
            while not ended:
                key = (yield from flow.until("=")).strip()
                yield from _LITERALS.value(flow, members.begin(key))
                ended = (yield from flow.sign()) == ")" or (yield from flow.either(",")) != ","
            yield from flow.taken()
            flow.write("}")
            flow.end()
            more = yield from flow.either(",", "]")

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        return f"calls: {spell(self.markers[0])} {self._behind(spell, one=one)}\n{self._rules(functions)}"

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str:
        """See :class:`Style`. A list of JSON as well, which the system message may ask for."""
        listed = (
            f"listed: SPACE body SPACE {spell(self.end)}\nbody: %json {inlined(list_of(functions, one=False))}\n{SPACE}"
        )
        behind = f"({self._behind(spell, one=False)} | listed)"
        return anywhere(self.markers[0], spell, behind) + self._rules(functions) + listed

    def _behind(self, spell: Spell, *, one: bool) -> str:
        more = "" if one else '(", " call)*'
        return f'"[" call {more} "]" {spell(self.end)}'

    def _rules(self, functions: Sequence[Function]) -> str:
        either = " | ".join(f"f{at}" for at in range(len(functions)))
        single = "SINGLE: /'([^'\\\\\\n]|\\\\.)*'/\n"
        return f"call: {either}\n" + "".join(_function(f"f{at}", one) for at, one in enumerate(functions)) + single

    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """See :class:`Style`."""
        written = (
            f"{name}({', '.join(f'{key}={_written(one)}' for key, one in given.items())})" for name, given in calls
        )
        return [Own(self.markers[0]), f"[{', '.join(written)}]", Own(self.end)]


def _function(rule: str, function: Function) -> str:
    """The rules of a call of one function: what is named, in the schema's order, with a comma between any two."""
    root = checked(parameters_of(function))
    required = root.get("required") or ()
    names = list(dict.fromkeys([*root.get("properties", {}), *required]))
    if bad := next((name for name in names if not _KEY.fullmatch(f"{name}=")), None):
        raise InputError(f"the grammar cannot be compiled: the parameter name {bad[:80]!r} is not a Python identifier")
    name = json.dumps(f"{function['name']}(")
    if not names and root.get("additionalProperties", True) is not False:
        extra = _value(f"{rule}v", root.get("additionalProperties", True), root)
        return (
            f'{rule}: {name} ({rule}p (", " {rule}p)*)? ")"\n{rule}p: /[A-Za-z_][A-Za-z0-9_]{{0,63}}=/ {rule}v\n{extra}'
        )
    rules = f'{rule}: {name} {rule}a0 ")"\n'
    for at, key in enumerate(names):
        skip = "" if key in required else " | {}"
        given = f"{json.dumps(key + '=')} {rule}v{at} {rule}b{at + 1}"
        rules += f"{rule}a{at}: {given}{skip.format(f'{rule}a{at + 1}')}\n"
        rules += f'{rule}b{at}: ", " {given}{skip.format(f"{rule}b{at + 1}")}\n' if at else ""
        rules += _value(f"{rule}v{at}", schema_of(root, key), root)
    return rules + f'{rule}a{len(names)}: ""\n' + (f'{rule}b{len(names)}: ""\n' if names else "")


def _value(rule: str, schema: Any, root: Mapping[str, Any]) -> str:
    """The rule of a value: JSON, or Python's words and quotes where JSON has others."""
    schema = resolved(schema, root)
    if schema is False:
        raise InputError("the grammar cannot be compiled: a parameter's schema allows no value")
    types = types_of(schema, root) or frozenset({"string", "boolean", "null"})
    given = schema if isinstance(schema, Mapping) else {}
    other = ['"True" | "False"'] if "boolean" in types and not {"const", "enum"} & set(given) else []
    other += ['"None"'] if "null" in types else []
    other += ["SINGLE"] if "string" in types and not set(given) - {"type", "title", "description", "default"} else []
    texts = [given["const"]] if "const" in given else given.get("enum", ())
    other += [json.dumps(f"'{one}'") for one in texts if isinstance(one, str) and not set(one) & set("'\\\n")]
    json_rule = f"{rule}j: %json {inlined(with_root(given, root))}\n"
    return f"{rule}: {' | '.join([f'{rule}j', *other])}\n{json_rule}"


class _Reader(Scanner):
    """Reads Python's literals from a text. Raises ValueError where something else comes."""

    def list_of_calls(self) -> list[Named]:
        """Calls in brackets, and nothing behind."""
        self.taken("[")
        found = [self.call()]
        while self.next(","):
            found.append(self.call())
        self.taken("]")
        self.ended()
        return found

    def call(self) -> Named:
        """A call by keywords."""
        name = self.matched(_NAME)[0]
        given: dict[str, Any] = {}
        self.taken("(")
        while not self.next(")"):
            if given:
                self.taken(",")
            key, value = self.matched(_KEY)[1], self._value(0)
            given.setdefault(key, value)
        return name, given

    def _value(self, depth: int) -> Any:
        self.space()
        sign = self._text[self.at : self.at + 1]
        if depth > MOST_DEEP:
            raise ValueError("nested too deeply")
        if sign in ("[", "("):
            return self._list("]" if sign == "[" else ")", depth)
        if sign == "{":
            return self._mapping(depth)
        if sign in ('"', "'"):
            return self._string()
        if sign.isalpha():
            word = self.matched(_WORD)[0]
            if word not in _WORDS:
                raise ValueError(word)
            return _WORDS[word]
        return _number(self.matched(_NUMBER)[0])

    def _list(self, end: str, depth: int) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while not self.next(end):
            if found:
                self.taken(",")
                if self.next(end):
                    break
            found.append(self._value(depth + 1))
        return found

    def _mapping(self, depth: int) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        while not self.next("}"):
            if found:
                self.taken(",")
                if self.next("}"):
                    break
            self.space()
            key = self._string()
            self.taken(":")
            value = self._value(depth + 1)
            found.setdefault(key, value)
        return found

    def _string(self) -> str:
        text = self.matched(_STRING)[0][1:-1]
        return _ESCAPE.sub(_unescaped, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _number(text: str) -> int | float:
    number = text.replace("_", "")
    return int(number) if number.lstrip("+-").isdigit() else nearest_float(number)


class _Literals(Values):
    """Python's literals as they are written."""

    words = {word: as_json(value) for word, value in _WORDS.items()}
    lists = {"[": "]", "(": ")"}
    most_deep = MOST_DEEP
    trailing = True

    def begins_text(self, sign: str) -> bool:
        """See :class:`Values`."""
        return sign in "\"'"

    def text(self, flow: Flow, write: Write) -> Reading:
        """See :class:`Values`."""
        quote = yield from flow.taken()
        high = ""
        while (sign := (yield from flow.peek())) != quote:
            if sign != "\\":
                write(("\ufffd" if high else "") + quoted(flow.chunk(_CHUNKS[quote])))
                high = ""
                continue
            yield from flow.taken()
            code = yield from flow.taken()
            digits = yield from flow.some(_HEX, {"u": 4, "x": 2}.get(code, 0))
            if code == "u" and len(digits) == 4:
                high = surrogates(write, high, int(digits, 16))
                continue
            found = _ESCAPE.sub(_unescaped, f"\\{code}{digits}")
            write(("\ufffd" if high else "") + quoted(found))
            high = ""
        write("\ufffd" if high else "")
        yield from flow.taken()

    def key(self, flow: Flow) -> Generator[None, None, str]:
        """See :class:`Values`."""
        yield from flow.sign()
        pieces: list[str] = []
        yield from self.text(flow, pieces.append)
        key: str = DECODER.decode(f'"{"".join(pieces)}"')
        return key

    def number(self, text: str) -> int | float:
        """See :class:`Values`."""
        if _NUMBER.fullmatch(text) is None:
            raise ValueError(text)
        return _number(text)


_LITERALS = _Literals()


def _unescaped(found: re.Match[str]) -> str:
    said = found[1]
    if len(said) > 1:
        return chr(int(said[1:], 16))
    return _ESCAPED.get(said, said if said in "\\'\"/" else "\\" + said)


def _written(value: Any) -> str:
    """A value in JSON, which Python reads but for its words."""
    words = {True: "True", False: "False"}
    return (
        words[value] if isinstance(value, bool) else "None" if value is None else json.dumps(value, ensure_ascii=False)
    )
