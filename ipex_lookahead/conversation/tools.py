"""Calls of tools: how a model's template writes them, and how they are found in an answer.

The call styles are in ``calls``; the chat template determines the style. For a template without tools, they are in
the system message and in the messages' text, in Hermes' way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipex_lookahead.conversation.calls.bare_keys import BareKeys
from ipex_lookahead.conversation.calls.base import Call, Function, Named, Style, Written, as_json, parameters_of
from ipex_lookahead.conversation.calls.elements import Addressed, Coder, Keyed, Params
from ipex_lookahead.conversation.calls.flow import Flow, begins
from ipex_lookahead.conversation.calls.json_calls import Bare, Bracketed, Listed, Numbered, Sectioned, Tagged
from ipex_lookahead.conversation.calls.pythonic import Pythonic
from ipex_lookahead.conversation.calls.typed import typed
from ipex_lookahead.tokenization.content import Woven

_JOIN = re.compile(r"""["']\s*-\}\}\s*\{\{-\s*["']""")
"""The place between two texts of a template that follow each other without a gap."""
_TOOLS = re.compile(r"tools\b")
"""How templates name what may be called: ``tools``, ``available_tools``, ``xml_tools``."""
_NO_TEXT = re.compile(r"\['content'\] is (not )?none")
"""How DeepSeek's templates tell messages with calls from those without."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What a chat template knows of calls.

    Attributes:
        style: how the model writes them.
        known: whether the template defines the style; otherwise it is Hermes' style, described in the system message.
        lists: whether it writes which tools there are.
        repeats: whether it writes the calls of earlier messages.
        needs_none: whether it looks for calls in messages of no text at all, rather than of an empty one.
        gathers: whether it takes the results of calls in the message that called, rather than in messages of their own.
    """

    style: Style
    known: bool
    lists: bool
    repeats: bool
    needs_none: bool
    gathers: bool


def ways_of(template: str) -> Ways:
    """What a chat template knows of calls."""
    style = _style_of(template)
    return Ways(
        style or Tagged(),
        style is not None,
        _TOOLS.search(template) is not None,
        "tool_calls" in template,
        isinstance(style, Sectioned) and _NO_TEXT.search(template) is not None,
        "tool_responses" in template and "tool_call_id" not in template,
    )


def _style_of(template: str) -> Style | None:
    if "[TOOL_CALLS]" in template:
        return Listed()
    if BareKeys.markers[0] in template:
        return BareKeys()
    if Addressed.markers[0] in template:
        return Addressed()
    if "<tool_call>" in template:
        if "<arg_key>" in template:
            return Keyed("" if "</arg_key><arg_value>" in _JOIN.sub("", template) else "\n")
        return Coder() if "<function=" in template else Tagged()
    if all(part in template for part in (Params.markers[0], '<param name="')):
        return Params()
    if "<TOOLCALL>" in template:
        return Bracketed("<TOOLCALL>", "</TOOLCALL>")
    if "<｜tool▁calls▁begin｜>" in template:
        return Sectioned(fenced="```json" in template)
    if Numbered.markers[0] in template:
        return Numbered()
    # LFM2's templates of which some never write a call: they name the list of tools alike.
    if "<|tool_call_start|>" in template or "List of tools: " in template:
        return Pythonic()
    if "<|tool_call|>" in template:
        return Bracketed("<|tool_call|>")
    if "<|python_tag|>" in template or '"parameters"' in template:
        return Bare()
    return None


def described(functions: Sequence[Function], style: Style) -> Woven:
    """Return the system text about tools for a model with a template that does not list them."""
    lines = "\n".join(as_json({"type": "function", "function": dict(one)}) for one in functions)
    return Woven(
        [
            f"You may call these functions. Their signatures:\n<tools>\n{lines}\n</tools>\nTo call one, answer with\n",
            *style.spelled([("<its name>", {"<a parameter>": "<its value>"})]),
        ]
    )


def with_tools(messages: Sequence[Mapping[str, Any]], functions: Sequence[Function], style: Style) -> list[Any]:
    """Messages with the tools in the system message."""
    if not functions:
        return list(messages)
    text = described(functions, style)
    if messages and messages[0]["role"] == "system":
        own = messages[0]["content"]
        return [{**messages[0], "content": Woven([own, "\n\n", *text.parts])}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_calls(messages: Sequence[Mapping[str, Any]], style: Style) -> list[Any]:
    """Messages in which earlier calls are part of the text, as the model wrote them."""
    found: list[Any] = []
    for message in messages:
        calls = [
            (one["function"]["name"], one["function"].get("arguments") or {}) for one in message.get("tool_calls") or ()
        ]
        if calls and all(isinstance(arguments, Mapping) for _, arguments in calls):
            own = [message["content"]] if message.get("content") else []
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            message = {**kept, "content": Woven([*own, *style.spelled(calls)])}
        found.append(message)
    return found


def numbered(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Messages in which each call has an id, and each result its call's, by which templates tell them apart.

    A result without one is of the function that it names, else of the next call that has none. An id that is made here
    has nine letters and digits, as Mistral's templates want it.
    """
    found: list[Any] = []
    waiting: list[tuple[Any, str]] = []  # ids, which clients may send of any type, and names of functions
    for message in messages:
        if calls := message.get("tool_calls"):
            made = [{**one, "id": one.get("id") or f"call{len(found):03d}{at:02d}"} for at, one in enumerate(calls)]
            waiting = [(one["id"], one["function"]["name"]) for one in made]
            message = {**message, "tool_calls": made}
        elif message["role"] == "tool" and waiting:
            number = message.get("tool_call_id")
            if number is None:
                number = next((one for one, name in waiting if name == message.get("name")), waiting[0][0])
                message = {**message, "tool_call_id": number}
            waiting = [one for one in waiting if one[0] != number]
        found.append(message)
    return found


def with_results(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Messages in which results stand in the message that called, as Gemma 4's first templates have them."""
    found: list[Any] = []
    for message in messages:
        caller = found[-1] if found else {}
        calls = caller.get("tool_calls")
        if message["role"] != "tool" or not calls:
            found.append(message)
            continue
        names = [one["function"]["name"] for one in calls if one.get("id") == message.get("tool_call_id")]
        name = [*names, message.get("name") or "unknown"][0]
        result = {"name": name, "response": message.get("content") or ""}
        found[-1] = {**caller, "tool_responses": [*caller.get("tool_responses", ()), result]}
    return found


def in_words(messages: Sequence[Mapping[str, Any]], functions: Sequence[Function], style: Style) -> list[Any]:
    """Messages for a template that knows no tools: calls and their results become text, the tools a system message."""
    found: list[Any] = []
    for message in with_calls(messages, style):
        text = message.get("content") or ""
        if message["role"] == "tool":
            found.append({"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"})
        else:
            found.append({"role": message["role"], "content": text})
    return with_tools(found, functions, style)


class Parser:
    """Finds calls in an answer as it comes. What turns out to be none is given back as text.

    What it gives depends on the text alone, not on the pieces that it comes in: where text that was held back may still
    become part of a call, or white space that is left out, more is waited for.

    Args:
        style: how the model writes them.
        functions: that there are; a call of another is text.
        one: the answer ends with its first call; what is behind that is dropped.
        certain: a grammar keeps calls to their form, so that a call comes in pieces as it is written. One that the end
            of the answer cuts is a call without its end.
        only: the grammar allows nothing but calls, so that there is no text.

    Attributes:
        one: as given.
        ended: whether the answer has ended so.
    """

    def __init__(
        self,
        style: Style,
        functions: Sequence[Function],
        *,
        one: bool = False,
        certain: bool = False,
        only: bool = False,
    ) -> None:
        self.ended = False
        self._style = style
        self._functions = {function["name"]: function for function in functions}
        self.one = one
        self._certain, self._only = certain, only
        self._flow: Flow | None = None  # of the calls behind the marker, where they come in pieces
        self._fed = 0  # characters of what is waiting that it has
        self._waiting = ""
        self._begun = ""
        self._passed = 0
        """Up to where what is waiting holds no end."""
        self._said = False
        self._called = False
        self._space: str | None = ""
        """White space since the start or the last call, if nothing else was said since; else None."""

    def again(self, *, pieces: bool = True) -> Parser:
        """Return one that has seen nothing; without ``pieces``, its calls come as a whole."""
        certain = self._certain and pieces
        return Parser(self._style, list(self._functions.values()), one=self.one, certain=certain, only=self._only)

    def put(self, text: str, *, last: bool) -> list[str | Call]:
        """New text -> what is certain, in order: text outside calls, and calls or, of each, one piece.

        White space alone between calls, before the first or behind the last is left out, and so are line
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
                if self._certain:
                    self._flow, self._fed = Flow(self._style.read, self._functions), 0
                    self._flow.put("{" if self._begun == "{" else "")
            body, end, behind = self._body(last=last)
            begun = self._flowed(self._waiting if body is None else body)
            if begun:
                self._called, self._space = True, ""
                found += begun
            if body is None:
                break
            # Where the answer was cut before the end, what is there so far may look like a call that is whole.
            cut = self._flow is not None and last and bool(self._style.end) and not end
            calls = [] if cut and not (self.one and self._first(body)) else self._read(body)
            self._waiting = behind
            if calls:
                self._called, self._space = True, ""
                self.ended = self.one
                found += self._rest(calls[:1] if self.one else calls)
            elif self._flow is None or (end and not self._flow.calls):
                self._say(found, self._begun + body + end)
            self._begun, self._passed, self._flow = "", 0, None
        if last and self._space and not self._called and not self._only:
            found.append(self._space)
        return _joined(found)

    def _flowed(self, body: str) -> list[Call]:
        """Return the pieces of calls that are certain with the text between the marker and its end so far."""
        if self._flow is None:
            return []
        begin, self._fed = self._fed, max(self._fed, len(body))
        found = self._flow.put(body[begin:])
        return [one for one in found if one.id == self._flow.calls[0][1]] if self.one else found

    def _rest(self, calls: list[Call]) -> list[Call]:
        """Return what was not given yet of whole calls."""
        begun = [] if self._flow is None else self._flow.calls
        found: list[Call] = []
        for call, (name, number, pieces, ended) in zip(calls, begun, strict=False):
            written = "".join(pieces)
            if not ended and call.name == name and call.arguments.startswith(written):
                found.append(Call(name, call.arguments[len(written) :], number, begins=False))
        return found + calls[len(begun) :]

    def _body(self, *, last: bool) -> tuple[str | None, str, str]:
        """Return the text between the marker and its end, the end, and the rest; None while more may come."""
        text, end = self._waiting, self._style.end
        if self.one and (whole := self._first(text)) is not None and self._known(whole[0]):
            return (whole[1] if self._begun != "{" else whole[1][1:]), "", ""
        if end:
            at = self._end(text, end)
            if at < 0 and last:
                at = text.find(end)
            if at >= 0:
                return text[:at], end, text[at + len(end) :]
            return text if last else None, "", ""
        return (text if last else None), "", ""

    def _end(self, text: str, end: str) -> int:
        """Where the end comes that is not part of a value; -1 where it has not come."""
        while (at := text.find(end, self._passed)) >= 0:
            if not self._style.holds(text[:at], self._functions):
                return at
            self._passed = at + 1
        self._passed = max(self._passed, len(text) - len(end) + 1)
        return -1

    def _first(self, body: str) -> tuple[Named, str] | None:
        return self._style.first(self._whole(body))

    def _whole(self, body: str) -> str:
        """With the brace that it began with."""
        return "{" + body if self._begun == "{" else body

    def _say(self, found: list[str | Call], text: str) -> None:
        if self._only:
            return
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
        kept = max((begins(text, marker) for marker in self._style.markers if len(marker) > 1), default=0)
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
        whole = self._first(body) if self.one else None
        given = [whole[0]] if whole is not None else self._style.calls(self._whole(body), self._functions) or []
        if not given or not all(map(self._known, given)):
            return []
        return [Call(name, as_json(self._typed(name, arguments))) for name, arguments in given]

    def _known(self, call: Named) -> bool:
        return call[0] in self._functions and isinstance(call[1], dict)

    def _typed(self, name: str, arguments: Any) -> Any:
        return typed(arguments, parameters_of(self._functions[name])) if isinstance(arguments, Written) else arguments


def _joined(parts: Sequence[str | Call]) -> list[str | Call]:
    """Join the pieces of each call."""
    found: list[str | Call] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, Call) and isinstance(last, Call) and last.id == part.id:
            found[-1] = last.joined(part)
        else:
            found.append(part)
    return found
