"""Calls of tools: how a model's template writes them, how they are found in an answer, and forced.

Three ways of writing are known by what a chat template says of them; for a template that knows no tools they stand
in the system message, in the first way.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipex_lookahead.serving.grammar import inlined

Function = Mapping[str, Any]
"""``{"name": ..., "description": ..., "parameters": schema}``; the name is always there."""
Spell = Callable[[str], str]
"""A marker as a grammar spells it: a text in quotes, or the id of a special token."""


_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call.

    Attributes:
        name: of the function.
        arguments: JSON text.
        id: of the call, which its result repeats.
    """

    name: str
    arguments: str
    id: str = field(default_factory=lambda: "call_" + secrets.token_hex(12))


class Style(ABC):
    """A way of writing calls.

    Attributes:
        markers: spellings that a call may begin with.
    """

    markers: tuple[str, ...] = ()
    end = ""

    @abstractmethod
    def calls(self, body: str) -> list[tuple[str, Any]] | None:
        """What stands between the marker and the end -> (name, arguments) of each call; None where it is none."""

    def first(self, body: str) -> tuple[tuple[str, Any], str] | None:
        """The first call in what stands behind the marker, as soon as it is whole, and the text up to its end.

        For ways of writing without an ``end``. None where none is whole yet.
        """
        return None

    @abstractmethod
    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """The rule ``calls`` in Lark, as llguidance reads it: one call, or one or more, and nothing else."""

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str | None:
        """The rule ``start``: any text, in which a call that has begun is one. None where beginnings say too little."""
        return None


class Tagged(Style):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen, and many after them."""

    markers = ("<tool_call>",)
    end = "</tool_call>"

    def calls(self, body: str) -> list[tuple[str, Any]] | None:
        """See :class:`Style`."""
        return _named(_json(body), "arguments")

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        schema = inlined(one_of(functions, "arguments"))
        many = "call" if one else 'call ("\\n" call)*'
        begin, end = spell("<tool_call>"), spell("</tool_call>")
        return f'calls: {many}\ncall: {begin} "\\n" body "\\n" {end}\nbody: %json {schema}\n'

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str:
        """See :class:`Style`."""
        begin, end = spell(self.markers[0]), spell(self.end)
        # A marker of letters is looked for in the text; one that is a token cannot be part of any.
        head = f"head: TEXT {begin}" if begin.startswith("<[") else f"head[lazy]: TEXT {begin}"
        schema = inlined(one_of(functions, "arguments"))
        return (
            f"start: call* rest\nrest: TEXT\ncall: head SPACE body SPACE {end}\n{head}\n"
            f"body: %json {schema}\nTEXT: /(.|\\n)*/\nSPACE: /[ \\n]{{0,4}}/\n"
        )


class Bare(Style):
    """The whole answer is ``{"name": ..., "parameters": {...}}``, perhaps after ``<|python_tag|>``: Llama 3."""

    markers = ("<|python_tag|>", "{")
    _OBJECT = re.compile(r"\s*(?=\{)")

    def calls(self, body: str) -> list[tuple[str, Any]] | None:
        """See :class:`Style`."""
        text = body.strip()
        found: list[tuple[str, Any]] = []
        for part in text.split(";") if "};" in text.replace(" ", "") else [text]:
            one = _named(_json(part), "parameters")
            if one is None:
                return _named(_json(text), "parameters")
            found += one
        return found

    def first(self, body: str) -> tuple[tuple[str, Any], str] | None:
        """See :class:`Style`."""
        return _first(body, self._OBJECT, "parameters")

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        return f"calls: body\nbody: %json {inlined(one_of(functions, 'parameters'))}\n"


class Listed(Style):
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]name{...}``: Mistral."""

    markers = ("[TOOL_CALLS]",)
    _LIST = re.compile(r"\s*\[\s*(?=\{)")
    _CALL = re.compile(r"\s*([A-Za-z0-9_.-]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")

    def calls(self, body: str) -> list[tuple[str, Any]] | None:
        """See :class:`Style`."""
        whole = _json(body)
        if isinstance(whole, list):
            found = [_named(item, "arguments") for item in whole]
            return None if not found or None in found else [call for one in found if one for call in one]
        calls: list[tuple[str, Any]] = []
        for part in body.split("[TOOL_CALLS]"):
            named = self._CALL.match(part)
            arguments = _json(part[named.end() :]) if named else None
            if named is None or not isinstance(arguments, dict):
                return None
            calls.append((named[1], arguments))
        return calls

    def first(self, body: str) -> tuple[tuple[str, Any], str] | None:
        """See :class:`Style`."""
        return _first(body, self._LIST, "arguments") or _first(body, self._CALL, "")

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        schema: dict[str, Any] = {"type": "array", "items": one_of(functions, "arguments"), "minItems": 1}
        if one:
            schema["maxItems"] = 1
        return f"calls: {spell('[TOOL_CALLS]')} body\nbody: %json {inlined(schema)}\n"


def style_of(template: str) -> tuple[Style, bool]:
    """How a chat template writes calls, and whether it knows of tools at all."""
    if "[TOOL_CALLS]" in template:
        return Listed(), True
    if "<tool_call>" in template:
        return Tagged(), True
    if "<|python_tag|>" in template or '"parameters"' in template:
        return Bare(), True
    return Tagged(), False


def one_of(functions: Sequence[Function], arguments: str) -> dict[str, Any]:
    """The JSON schema of a call of any of the functions. ``$defs`` of their parameters stay with each."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                arguments: function.get("parameters") or {"type": "object", "additionalProperties": True},
            },
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for function in functions
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def described(functions: Sequence[Function]) -> str:
    """The system text about tools for a model whose template has none."""
    lines = "\n".join(json.dumps({"type": "function", "function": dict(one)}) for one in functions)
    return (
        "You may call these functions. Their signatures:\n<tools>\n" + lines + "\n</tools>\n"
        'To call one, answer with\n<tool_call>\n{"name": <its name>, "arguments": <an object>}\n</tool_call>'
    )


def in_words(messages: Sequence[Mapping[str, Any]], functions: Sequence[Function]) -> list[dict[str, Any]]:
    """Messages for a template that knows no tools: calls and their results become text, the tools a system message."""
    found: list[dict[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        text = "\n".join(
            [
                *([message["content"]] if message.get("content") else []),
                *(f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in calls),
            ]
        )
        if message["role"] == "tool":
            found.append({"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"})
        else:
            found.append({"role": message["role"], "content": text})
    if functions:
        text = described(functions)
        if found and found[0]["role"] == "system":
            found[0] = {"role": "system", "content": f"{found[0]['content']}\n\n{text}"}
        else:
            found.insert(0, {"role": "system", "content": text})
    return found


class Parser:
    """Finds calls in an answer as it comes. What turns out to be none is given back as text.

    What it gives depends on the text alone, not on the pieces that it comes in: where text that was held back may still
    become part of a call, or white space that is left out, more is waited for.

    Args:
        style: how the model writes them.
        names: of the functions that there are; a call of another is text.
        one: the answer ends with its first call; what is behind that is dropped.

    Attributes:
        one: as given.
        ended: whether the answer has ended so.
    """

    def __init__(self, style: Style, names: Sequence[str], *, one: bool = False) -> None:
        self.ended = False
        self._style = style
        self._names = frozenset(names)
        self.one = one
        self._waiting = ""
        self._begun = ""
        self._said = False
        self._called = False
        self._space: str | None = ""
        """White space since the start or the last call, if nothing else was said since; else None."""

    def again(self) -> Parser:
        """One that has seen nothing."""
        return Parser(self._style, sorted(self._names), one=self.one)

    def put(self, text: str, *, last: bool) -> list[str | Call]:
        """New text -> what is certain, in order: text that is no call, and whole calls.

        White space that stands alone between calls, before the first or behind the last is left out, and so are line
        ends directly behind a call.
        """
        self._waiting += text
        found: list[str | Call] = []
        while not self.ended:
            if not self._begun:
                before, self._begun, self._waiting = self._split(self._waiting, last=last)
                self._say(found, before)
                if not self._begun:
                    break
            body, end, behind = self._body(last=last)
            if body is None:
                break
            calls = self._read(body)
            self._waiting = behind
            if calls:
                self._called, self._space = True, ""
                self.ended = self.one
                found += calls[:1] if self.one else calls
            else:
                self._say(found, self._begun + body + end)
            self._begun = ""
        if last and self._space and not self._called:
            found.append(self._space)
        return found

    def _body(self, *, last: bool) -> tuple[str | None, str, str]:
        """What stands between the marker and its end, the end, and what is behind it; None while more may come."""
        text, end = self._waiting, self._style.end
        if end:
            body, found, behind = text.partition(end)
            if found or last:
                return body, found, behind
            return None, "", ""
        whole = self._style.first(text if self._begun != "{" else "{" + text) if self.one else None
        if whole is not None and self._known(whole[0]):
            return (whole[1] if self._begun != "{" else whole[1][1:]), "", ""
        return (text if last else None), "", ""

    def _say(self, found: list[str | Call], text: str) -> None:
        if self._space is not None:
            if self._called and not self._space:
                text = text.lstrip("\n")
            text = self._space + text
            self._space = None if text.strip() else text
        if text and self._space is None:
            self._said = True
            if found and isinstance(found[-1], str):
                found[-1] += text
            else:
                found.append(text)

    def _split(self, text: str, *, last: bool) -> tuple[str, str, str]:
        """Text before a marker, the marker, and what is behind it; the start of a marker at the end waits."""
        found = min(
            ((at, marker) for marker in self._style.markers if (at := self._find(text, marker)) >= 0), default=None
        )
        if found is not None:
            at, marker = found
            return text[:at], marker, text[at + len(marker) :]
        if last:
            return text, "", ""
        kept = max((_begins(text, marker) for marker in self._style.markers if len(marker) > 1), default=0)
        if "{" in self._style.markers and not self._said and not text.strip():
            kept = len(text)
        return text[: len(text) - kept], "", text[len(text) - kept :]

    def _find(self, text: str, marker: str) -> int:
        """Where a call may begin: a brace only at the very start of an answer."""
        if marker != "{":
            return text.find(marker)
        stripped = text.lstrip()
        return len(text) - len(stripped) if not self._said and stripped.startswith("{") else -1

    def _read(self, body: str) -> list[Call]:
        if self.one and not self._style.end:
            whole = self._style.first(("{" if self._begun == "{" else "") + body)
            given = [] if whole is None else [whole[0]]
        else:
            given = self._style.calls(("{" if self._begun == "{" else "") + body) or []
        if not given or not all(map(self._known, given)):
            return []
        return [Call(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in given]

    def _known(self, call: tuple[str, Any]) -> bool:
        return call[0] in self._names and isinstance(call[1], dict)


def _begins(text: str, marker: str) -> int:
    return next((n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n])), 0)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _first(body: str, head: re.Pattern[str], key: str) -> tuple[tuple[str, Any], str] | None:
    """The object behind ``head``: a whole call, or with no ``key`` the arguments of what ``head`` names."""
    begin = head.match(body)
    if begin is None or "}" not in body:
        return None
    try:
        found, end = _DECODER.raw_decode(body, begin.end())
    except (ValueError, RecursionError):
        return None
    calls = _named(found, key) if key else [(begin[1], found)]
    return None if not calls else (calls[0], body[:end])


def _named(call: Any, key: str) -> list[tuple[str, Any]] | None:
    """``{"name": ..., key: {...}}`` as a call. Models mix up both keys, and leave out empty arguments."""
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    other = "parameters" if key == "arguments" else "arguments"
    return [(call["name"], call.get(key, call.get(other, {})))]
