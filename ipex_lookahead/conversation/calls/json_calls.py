"""Calls as JSON: in tags, alone, and in lists."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ipex_lookahead.conversation.calls.base import (
    DECODER,
    Function,
    Functions,
    Named,
    Spell,
    Style,
    anywhere,
    arguments_of,
    as_json,
    in_text,
    json_of,
    one_of,
)
from ipex_lookahead.conversation.calls.flow import JSON, Flow, Reading, call_list, call_object
from ipex_lookahead.conversation.grammar import inlined
from ipex_lookahead.tokenization.content import Own

_LIST = re.compile(r"\s*\[\s*(?=\{)")
SPACE = "SPACE: /[ \\n]{0,4}/\n"


class Tagged(Style):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen 2.5 and 3, Granite 4, many others."""

    markers = ("<tool_call>",)
    end = "</tool_call>"

    def calls(self, body: str, functions: Functions) -> list[Named] | None:
        """See :class:`Style`."""
        return named(json_of(body), "arguments")

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        yield from call_object(flow, "arguments")

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        schema = inlined(one_of(functions, "arguments"))
        many = "call" if one else 'call ("\\n" call)*'
        begin, end = spell("<tool_call>"), spell("</tool_call>")
        return f'calls: {many}\ncall: {begin} "\\n" body "\\n" {end}\nbody: %json {schema}\n'

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str:
        """See :class:`Style`."""
        schema = inlined(one_of(functions, "arguments"))
        return (
            anywhere(self.markers[0], spell, f"SPACE body SPACE {spell(self.end)}") + f"body: %json {schema}\n{SPACE}"
        )

    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """See :class:`Style`."""
        found: list[str] = []
        for name, arguments in calls:
            written = as_json({"name": name, "arguments": arguments})
            found += [*(["\n"] if found else []), Own(self.markers[0]), f"\n{written}\n", Own(self.end)]
        return found


class Bare(Style):
    """The whole answer is ``{"name": ..., "parameters": {...}}``, perhaps after ``<|python_tag|>``: Llama 3."""

    markers = ("<|python_tag|>", "{")
    _OBJECT = re.compile(r"\s*(?=\{)")

    def calls(self, body: str, functions: Functions) -> list[Named] | None:
        """See :class:`Style`."""
        found: list[Named] = []
        while (whole := self.first(body)) is not None:
            found.append(whole[0])
            body = body[len(whole[1]) :].lstrip().removeprefix(";")
        return found if found and not body.strip() else None

    def first(self, body: str) -> tuple[Named, str] | None:
        """See :class:`Style`."""
        return first_of(body, self._OBJECT, "parameters")

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        yield from call_object(flow, "parameters")

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        return f"calls: body\nbody: %json {inlined(one_of(functions, 'parameters'))}\n"

    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """See :class:`Style`."""
        return ["; ".join(as_json({"name": name, "parameters": arguments}) for name, arguments in calls)]


class Listed(Style):
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]name{...}``: Mistral."""

    markers = ("[TOOL_CALLS]",)
    _CALL = re.compile(r"\s*([A-Za-z0-9_.-]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")

    def calls(self, body: str, functions: Functions) -> list[Named] | None:
        """See :class:`Style`."""
        whole = json_of(body)
        if isinstance(whole, list):
            return all_named(whole)
        calls: list[Named] = []
        while (one := first_of(body, self._CALL, "")) is not None:
            calls.append(one[0])
            body = body[len(one[1]) :].lstrip()
            if not body:
                return calls
            if not body.startswith(self.markers[0]):
                return None
            body = body.removeprefix(self.markers[0])
        return None

    def first(self, body: str) -> tuple[Named, str] | None:
        """See :class:`Style`."""
        return first_of(body, _LIST, "arguments") or first_of(body, self._CALL, "")

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        yield from flow.either("[")
        yield from call_list(flow)

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        return f"calls: {spell('[TOOL_CALLS]')} body\nbody: %json {inlined(list_of(functions, one=one))}\n"

    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """See :class:`Style`."""
        return [Own(self.markers[0]), _listed(calls)]


class Bracketed(Style):
    """``<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>``: Nemotron Nano 2; with ``<|tool_call|>`` Granite 3.

    Args:
        begin: what a list begins with.
        end: what it ends with; "" for nothing.
    """

    def __init__(self, begin: str, end: str = "") -> None:
        self.markers = (begin,)
        self.end = end

    def calls(self, body: str, functions: Functions) -> list[Named] | None:
        """See :class:`Style`."""
        whole = json_of(body)
        return all_named(whole if isinstance(whole, list) else [whole])

    def first(self, body: str) -> tuple[Named, str] | None:
        """See :class:`Style`."""
        return first_of(body, _LIST, "arguments")

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        yield from flow.either("[")
        yield from call_list(flow)

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        end = spell(self.end) if self.end else ""
        return f"calls: {spell(self.markers[0])} body {end}\nbody: %json {inlined(list_of(functions, one=one))}\n"

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str:
        """See :class:`Style`."""
        body = f"body: %json {inlined(list_of(functions, one=False))}\n{SPACE}"
        if self.end:
            return anywhere(self.markers[0], spell, f"SPACE body SPACE {spell(self.end)}") + body
        # No mark shows where text would continue after a list: there is none.
        return anywhere(self.markers[0], spell, "SPACE body").replace("called* rest", "called | rest") + body

    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """See :class:`Style`."""
        return [Own(self.markers[0]), _listed(calls), *([Own(self.end)] if self.end else [])]


class Sectioned(Style):
    """Each call between tokens of its own, all of them between two more: DeepSeek V3, R1 and V3.1.

    Args:
        fenced: ``function``, a token, the name and the arguments in a block of code, as V3 and R1 have it; otherwise
            the name, a token and the arguments, as V3.1.
    """

    markers = ("<｜tool▁calls▁begin｜>",)
    end = "<｜tool▁calls▁end｜>"
    inner = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")

    def __init__(self, *, fenced: bool) -> None:
        self._fenced = fenced

    def calls(self, body: str, functions: Functions) -> list[Named] | None:
        """See :class:`Style`."""
        found: list[Named] = []
        while (whole := self.first(body)) is not None:
            found.append(whole[0])
            body = body[len(whole[1]) :]
        return found if found and not body.strip() else None

    def first(self, body: str) -> tuple[Named, str] | None:
        """See :class:`Style`."""
        begin, middle, end = self.inner
        before, begun, rest = body.partition(begin)
        at = rest.find(end)
        while at >= 0 and in_text(rest[:at]):
            at = rest.find(end, at + 1)
        inside, ended = (rest[:at], end) if at >= 0 else (rest, "")
        left, between, right = inside.partition(middle)
        if before.strip() or not (begun and ended and between):
            return None
        name, arguments = self._name_in(left), right.strip()
        if name == "function" and not arguments.startswith("{"):
            name, _, fenced = arguments.partition("```")
            name, arguments = name.strip(), fenced.removeprefix("json").removesuffix("```")
        return (name, json_of(arguments)), before + begun + inside + ended

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        begin, middle, end = self.inner
        while True:
            yield from flow.either(begin)
            name = yield from flow.until(middle)
            if self._fenced:
                name = yield from flow.until("```json")
            flow.begin(self._name_in(name))
            yield from flow.either("{")
            yield from JSON.mapping(flow, flow.write, 0)
            yield from flow.either(f"```{end}" if self._fenced else end)
            flow.end()

    def _name_in(self, text: str) -> str:
        """Return the function's name in the text before the arguments."""
        return text.strip()

    def _name_rule(self, name: str) -> str:
        """Return what a grammar has for a name, which is a string of Lark."""
        return name

    def _written_name(self, name: str, at: int) -> str:
        """Return how the call number ``at`` of an answer names a function."""
        return name

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        return f"calls: {spell(self.markers[0])} {self._behind(spell, one=one)}\n{self._rules(functions, spell)}"

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str:
        """See :class:`Style`."""
        return anywhere(self.markers[0], spell, self._behind(spell, one=False)) + self._rules(functions, spell)

    def _behind(self, spell: Spell, *, one: bool) -> str:
        return f"call {spell(self.end)}" if one else f'call ("\\n"? call)* {spell(self.end)}'

    def _rules(self, functions: Sequence[Function], spell: Spell) -> str:
        begin, middle, end = map(spell, self.inner)
        rules = [f"call: {begin} ({' | '.join(f'f{at}' for at in range(len(functions)))}) {end}"]
        for at, function in enumerate(functions):
            name = json.dumps(function["name"])
            fence = f'"function" {middle} {name} "\\n```json\\n" a{at} "\\n```"'
            rules.append(f"f{at}: {fence if self._fenced else f'{self._name_rule(name)} {middle} a{at}'}")
            rules.append(f"a{at}: %json {inlined(arguments_of(function))}")
        return "\n".join(rules) + "\n"

    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """See :class:`Style`."""
        found: list[str] = [Own(self.markers[0])]
        begin, middle, end = map(Own, self.inner)
        for at, (name, arguments) in enumerate(calls):
            written = as_json(arguments)
            before, behind = self._written_name(name, at), written
            if self._fenced:
                before, behind = "function", f"{name}\n```json\n{written}\n```"
            between = "\n" if self._fenced and at + 1 < len(calls) else ""
            found += [begin, before, middle, behind, end, between]
        return [*found, Own(self.end)]


class Numbered(Sectioned):
    """The same with other tokens, and names such as ``functions.weather:0``, by number: Kimi K2 and Kimi Linear."""

    markers = ("<|tool_calls_section_begin|>",)
    end = "<|tool_calls_section_end|>"
    inner = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
    _NAME = re.compile(r"(?:functions\.)?(.*?)(?::[0-9]+)?", re.DOTALL)

    def __init__(self) -> None:
        super().__init__(fenced=False)

    def _name_in(self, text: str) -> str:
        whole = self._NAME.fullmatch(text.strip())
        assert whole is not None  # any text is one
        return whole[1]

    def _name_rule(self, name: str) -> str:
        return f'"functions." {name} ":" /[0-9]{{1,3}}/'

    def _written_name(self, name: str, at: int) -> str:
        return f"functions.{name}:{at}"


def first_of(body: str, head: re.Pattern[str], key: str) -> tuple[Named, str] | None:
    """The object behind ``head``: a whole call, or with no ``key`` the arguments of what ``head`` names."""
    begin = head.match(body)
    if begin is None or "}" not in body:
        return None
    try:
        found, end = DECODER.raw_decode(body, begin.end())
    except (ValueError, RecursionError):
        return None
    calls = named(found, key) if key else [(begin[1], found)]
    return None if not calls else (calls[0], body[:end])


def named(call: Any, key: str) -> list[Named] | None:
    """``{"name": ..., key: {...}}`` as a call. Models mix up both keys, and leave out empty arguments."""
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    other = "parameters" if key == "arguments" else "arguments"
    return [(call["name"], call.get(key, call.get(other, {})))]


def all_named(calls: Sequence[Any]) -> list[Named] | None:
    """A list of such calls; None where it is empty, or something in it is none."""
    found = [named(item, "arguments") for item in calls]
    return None if not found or None in found else [call for one in found if one for call in one]


def list_of(functions: Sequence[Function], *, one: bool) -> dict[str, Any]:
    """The JSON schema of a list of calls: of one, or of one or more."""
    items = one_of(functions, "arguments")
    definitions = {"$defs": items.pop("$defs")} if "$defs" in items else {}
    return {"type": "array", "items": items, "minItems": 1, **({"maxItems": 1} if one else {}), **definitions}


def _listed(calls: Sequence[Named]) -> str:
    return as_json([{"name": name, "arguments": arguments} for name, arguments in calls])
