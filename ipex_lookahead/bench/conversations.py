"""Conversations of a coding agent for ``bench agent``: a system prompt, tools, calls and results of a given length.

The structure is that of requests recorded from coding agents: all tools in every request, one call of a tool per turn,
and messages that are only ever appended. The text is generated from word lists, the same for equal arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ipex_lookahead.errors import InputError

SHORT_LINES = 8
"""Lines of an ordinary tool result."""
SAMPLE = 60
"""Sentences and lines that :func:`fitted` counts the tokens of."""

_TOOLS: dict[str, dict[str, str]] = {
    "read_file": {"path": "string", "first_line": "integer", "last_line": "integer"},
    "write_file": {"path": "string", "content": "string"},
    "edit_file": {"path": "string", "old_text": "string", "new_text": "string", "replace_all": "boolean"},
    "list_folder": {"path": "string", "depth": "integer"},
    "find_files": {"pattern": "string", "path": "string"},
    "search_text": {"pattern": "string", "path": "string", "context_lines": "integer", "ignore_case": "boolean"},
    "run_command": {"command": "string", "folder": "string", "timeout_seconds": "integer", "background": "boolean"},
    "read_output": {"process": "string", "wait_seconds": "number"},
    "stop_process": {"process": "string"},
    "fetch_page": {"url": "string", "question": "string"},
    "write_plan": {"steps": "array"},
    "ask_user": {"question": "string", "choices": "array"},
}
"""Name of each tool -> its parameters and their JSON types; the first parameter is required."""
_ACTIONS = "read check edit rename split test format document review compare move measure".split()
_THINGS = (
    "function module test class constant import table parser cache queue option message folder script schema".split()
)
_MANNERS = (
    "in one call",
    "one at a time",
    "with the smallest change that works",
    "in the style of the file",
    "without touching other files",
    "as the user wrote it",
    "from the root of the project",
    "with its full path",
)
_REASONS = (
    "because later steps depend on it",
    "so that the user can follow each step",
    "since the file may have changed",
    "or explain in one sentence what prevents it",
    "and stop at the first error",
    "unless the task requires something else",
    "and name the lines that changed",
    "so that the tests still pass",
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The requests of one conversation.

    Attributes:
        name: First line of the system prompt; conversations with different names share no prefix of their prompts.
        task: Number of the task. The system prompt and the tools are the same for all tasks.
        sentences: Number of sentences in the system prompt and the descriptions of tools.
        turns: Number of requests.
        long_lines: Number of lines of the long tool result.
        short_lines: Number of lines of every other tool result.
    """

    name: str
    task: int = 0
    sentences: int = 0
    turns: int = 8
    long_lines: int = SHORT_LINES
    short_lines: int = SHORT_LINES

    @property
    def long_turn(self) -> int:
        """Number of the first request that has the long tool result; requests count from 1."""
        return self.turns // 2 + 1

    def body(self, turn: int) -> dict[str, Any]:
        """Return ``messages`` and ``tools`` of request number ``turn``, which counts from 1."""
        system = " ".join([f"Session {self.name}.", "You are a coding agent.", *self._rules()])
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": self._task()},
        ]
        for number in range(2, turn + 1):
            messages += self._exchange(number)
        return {"messages": messages, "tools": self._tools()}

    def _rules(self) -> list[str]:
        """Return the sentences of the system prompt: every second one; tools have the others."""
        return [_sentence(number) for number in range(0, self.sentences, 2)]

    def _tools(self) -> list[dict[str, Any]]:
        described: dict[str, list[str]] = {name: [f"Tool to {name.replace('_', ' ')}."] for name in _TOOLS}
        texts = [*described.values()]
        texts[0].insert(0, f"Session {self.name}.")  # chat templates may put the tools before the system prompt
        for place, number in enumerate(range(1, self.sentences, 2)):
            texts[place % len(texts)].append(_sentence(number))
        return [_tool(name, " ".join(described[name]), parameters) for name, parameters in _TOOLS.items()]

    def _task(self) -> str:
        draw = Random(f"task {self.task}")
        action, thing, other = draw.choice(_ACTIONS), draw.choice(_THINGS), draw.choice(_THINGS)
        return f"Task {self.task}: {action} the {thing} of src/{other}.py, then run the tests and report what changed."

    def _exchange(self, number: int) -> list[dict[str, Any]]:
        """Return the call of a tool that ended the request before ``number``, and its result."""
        draw = Random(f"exchange {self.task} {number}")
        path, call = f"src/{draw.choice(_THINGS)}_{number}.py", f"call_{self.task}_{number}"
        arguments = {"path": path, "first_line": 1, "last_line": self._lines(number)}
        function = {"name": "read_file", "arguments": json.dumps(arguments)}
        said = f"I {draw.choice(_ACTIONS)} the {draw.choice(_THINGS)} next."
        called = {"role": "assistant", "content": said, "tool_calls": [_call(call, function)]}
        return [called, {"role": "tool", "tool_call_id": call, "content": _source(draw, self._lines(number))}]

    def _lines(self, number: int) -> int:
        return self.long_lines if number == self.long_turn else self.short_lines


def fitted(
    conversation: Conversation, prompt_tokens: int, result_tokens: int, count: Callable[[dict[str, Any]], int]
) -> tuple[Conversation, int]:
    """Return the conversation with a system prompt and tools, and a long tool result, of about the given lengths.

    The second value is the estimated number of prompt tokens of the last request.

    Args:
        conversation: Its sentences and lines are replaced.
        prompt_tokens: Tokens of the system prompt, the tools and the first user message.
        result_tokens: Tokens of the long tool result.
        count: Returns the number of prompt tokens of a request.

    Raises:
        InputError: ``prompt_tokens`` is less than the tools need without descriptions.
    """
    bare = replace(conversation, sentences=0, turns=2, long_lines=1)
    least, described = count(bare.body(1)), count(replace(bare, sentences=SAMPLE).body(1))
    if prompt_tokens < least:
        raise InputError(f"--prompt-tokens is {prompt_tokens}: the tools alone take {least} tokens of this model")
    one, many = count(bare.body(2)), count(replace(bare, long_lines=1 + SAMPLE).body(2))
    line = (many - one) / SAMPLE
    sentences = round((prompt_tokens - least) * SAMPLE / (described - least))
    lines = max(1, round(result_tokens / line))
    short = conversation.turns - 2
    last = prompt_tokens + (short + 1) * (one - least - line) + (lines + short * conversation.short_lines) * line
    return replace(conversation, sentences=sentences, long_lines=lines), round(last)


def _sentence(number: int) -> str:
    """Return one sentence of instructions."""
    draw = Random(f"sentence {number}")
    action, then = draw.sample(_ACTIONS, 2)
    thing, other = draw.sample(_THINGS, 2)
    manner, reason = draw.choice(_MANNERS), draw.choice(_REASONS)
    return f"Rule {number}: before you {action} a {thing}, {then} every {other} {manner}, {reason}."


def _source(draw: Random, lines: int) -> str:
    """Return numbered lines of a program."""
    found = []
    for number in range(1, lines + 1):
        thing, other, action = draw.choice(_THINGS), draw.choice(_THINGS), draw.choice(_ACTIONS)
        found.append(f"{number:>4}  {thing}_{number} = {action}_{other}({other}_{draw.randrange(1000)}, strict=True)")
    return "\n".join(found)


def _tool(name: str, description: str, parameters: dict[str, str]) -> dict[str, Any]:
    properties = {
        key: {"type": kind, "description": f"The {key.replace('_', ' ')}."}
        | ({"items": {"type": "string"}} if kind == "array" else {})
        for key, kind in parameters.items()
    }
    schema = {"type": "object", "properties": properties, "required": [next(iter(parameters))]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _call(number: str, function: dict[str, str]) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": function}
