"""The tools of a Responses request: functions, also of namespaces and of custom tools, and what is left out of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.serving.conversation import FUNCTION
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import only

CUSTOM_INPUT = "input"
"""The one argument of the function that a custom tool becomes."""
_CUSTOM = ("type", "name", "description", "format", "defer_loading")
_NAMESPACE = ("type", "name", "description", "tools")
_FUNCTION = ("type", *FUNCTION, "defer_loading")
_BEGIN = f'{{"{CUSTOM_INPUT}": "'
_INNER = re.compile(r'(?:[^"\\]|\\.)*')
_TEXT = {
    "type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}  # fmt: skip


class CustomInput:
    """The text of a custom tool's call, from pieces of the function's arguments ``{"input": "..."}``."""

    def __init__(self) -> None:
        self._waiting = ""
        self._begun = self._ended = False

    def put(self, arguments: str) -> str:
        """Return the new text. No escape sequence may be divided between two pieces."""
        self._waiting += arguments
        if not self._begun:
            self._begun = self._waiting.startswith(_BEGIN)
            self._waiting = self._waiting[len(_BEGIN) :] if self._begun else self._waiting
        if not self._begun or self._ended:
            return ""
        inner = _INNER.match(self._waiting)
        assert inner is not None
        self._ended = inner.end() < len(self._waiting)
        self._waiting = ""
        text: str = json.loads(f'"{inner[0]}"')
        return text


class Toolbox:
    """The tools of a request, as the model and as the client know them.

    The model knows a function of a namespace by its bare name, or as ``namespace__name`` if that name is taken.

    Args:
        tools: the field.

    Attributes:
        functions: ``{"name", "description", "parameters", "strict"}`` each, as the model knows them.
        places: their places in the request.
        left_out: places and types of tools that run on OpenAI's servers, which the model does not get.

    Raises ApiError for a tool that is invalid.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self.functions: list[dict[str, Any]] = []
        self.places: list[str] = []
        self.left_out: list[str] = []
        self._known: dict[str, tuple[str, str | None]] = {}  # the model's name -> the client's, and the namespace
        self._custom: set[str] = set()
        for at, tool in enumerate(tools):
            self._add(tool, f"tools.{at}", None)

    def _add(self, tool: Mapping[str, Any], place: str, namespace: str | None) -> None:
        kind = tool.get("type")
        if kind == "function":
            only(tool, _FUNCTION, f"{place}.")
            self._put({name: tool.get(name) for name in FUNCTION}, place, namespace)
        elif kind == "custom":
            only(tool, _CUSTOM, f"{place}.")
            described = "\n".join(filter(None, (tool.get("description"), _definition(tool.get("format"), place))))
            function = {"name": tool.get("name"), "description": described or None, "parameters": _TEXT, "strict": True}
            self._custom.add(self._put(function, place, namespace))
        elif kind == "namespace" and namespace is None:
            only(tool, _NAMESPACE, f"{place}.")
            inner, name = tool.get("tools"), tool.get("name")
            if not isinstance(inner, list) or not all(isinstance(one, dict) for one in inner):
                raise refused(f"{place}.tools", "it must be a list of tools")
            if not isinstance(name, str) or not name:
                raise refused(f"{place}.name", "a namespace needs a name")
            for at, one in enumerate(inner):
                self._add(one, f"{place}.tools.{at}", name)
        elif isinstance(kind, str) and kind != "namespace":
            self.left_out.append(f"{place} ({kind})")
        else:
            raise refused(f"{place}.type", f"{kind!r} is not supported here; it may be function, custom or namespace")

    def _put(self, function: dict[str, Any], place: str, namespace: str | None) -> str:
        name = function["name"]
        if namespace is not None and name in self._known:
            function["name"] = f"{namespace}__{name}"
        self._known[str(function["name"])] = (str(name), namespace)
        self.functions.append(function)
        self.places.append(place)
        return str(function["name"])

    def name_of(self, name: str, namespace: Any) -> str:
        """Return the model's name of the function that an earlier call names."""
        given = (name, namespace if isinstance(namespace, str) else None)
        return next((own for own, client in self._known.items() if client == given), name)

    def choice(self, given: Any) -> Any:
        """Return ``tool_choice`` with functions for custom tools, and without what is left out of ``allowed_tools``."""
        if not isinstance(given, Mapping):
            return given
        if given.get("type") == "allowed_tools" and isinstance(given.get("tools"), list):
            tools = [self.choice(tool) for tool in given["tools"] if _is_ours(tool)]
            return {**given, "tools": tools} if tools or not given["tools"] else "none"
        name = given.get("name")
        if given.get("type") in ("custom", "function") and isinstance(name, str):
            return {"type": "function", "name": self.name_of(name, given.get("namespace"))}
        return given

    def item(self, call: Call) -> dict[str, Any]:
        """Return a call as an item of the output has it, without an id."""
        name, namespace = self._known[call.name]
        named: dict[str, Any] = {"call_id": call.id, "name": name}
        if namespace is not None:
            named["namespace"] = namespace
        if call.name in self._custom:
            return {"type": "custom_tool_call", **named, "input": CustomInput().put(call.arguments)}
        return {"type": "function_call", **named, "arguments": call.arguments}


def _is_ours(tool: Any) -> bool:
    return not isinstance(tool, Mapping) or tool.get("type") in ("function", "custom") or "type" not in tool


def _definition(form: Any, place: str) -> str:
    """Return the description of a custom tool's format for the model; "" for any text."""
    if form is None:
        return ""
    if not isinstance(form, Mapping) or form.get("type") not in ("text", "grammar"):
        raise refused(f"{place}.format", 'it must be {"type": "text"} or {"type": "grammar", ...}')
    if form["type"] == "text":
        return ""
    grammar = form.get("grammar", form)  # nested in chat completions
    if not isinstance(grammar, Mapping) or not isinstance(grammar.get("definition"), str):
        raise refused(f"{place}.format.definition", "a grammar needs a definition")
    return f"The text follows this grammar ({grammar.get('syntax', 'lark')}):\n{grammar['definition']}"
