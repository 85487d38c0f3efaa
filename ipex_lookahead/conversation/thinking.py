"""Thinking: the text between two marks before the answer, and detection of its end."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ipex_lookahead.conversation.calls.base import ANY_TEXT, without

TAIL = 32
"""Tokens at the end of a prompt that are looked at: a template writes a few behind the last message."""


class Thought(str):
    """Text that was thought, not said."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks around a thought.

    Attributes:
        begin, end: each may be a special token.
        label: text directly behind ``begin``, part of it.
        again: a model may think once more behind a thought, though its prompt holds one already.
    said: head of a message to the user, in parts, where each message of an answer has a head and thoughts are messages;
        ``label`` is then the mark that ends heads.
    turn: text between two messages, in parts.
    """

    begin: str
    end: str
    label: str = ""
    again: bool = False
    said: tuple[str, ...] = ()
    turn: tuple[str, ...] = ()

    @property
    def spelled(self) -> tuple[str, ...]:
        """Parts of the marks that may be special tokens."""
        return (*dict.fromkeys((self.begin, self.end, *((self.label, *self.turn) if self.turn else ()))),)

    @property
    def opening(self) -> str:
        """The whole beginning."""
        return self.begin + self.label


TAGS = Marks("<think>", "</think>")
"""Qwen's way, and most others'."""
CHANNEL = Marks("<|channel>", "<channel|>", "thought", again=True)
"""Gemma 4's. With thinking off the prompt has an empty thought, or nothing, and the model may still think."""

MESSAGES = Marks(
    "to=self",
    "<|eom|>",
    "<|message|>",
    again=True,
    said=(" to=user", "<|message|>"),
    turn=("<|eom|>", "<|start|>", "assistant"),
)
"""Muse-Glimmer's: ``<|start|>assistant to=self<|message|>thought<|eom|><|start|>assistant to=user<|message|>said``."""


EFFORTS = {"none": 0, "minimal": 0, "low": 1024, "medium": 4096, "high": 16384}
"""Reasoning effort -> most tokens of thought, for a chat template without a variable of its own; others: no limit."""
NO_LIMIT = -1


def budget_of(template: str, given: int | None, effort: Any, default: int | None) -> int | None:
    """Return the most tokens that an answer may think; None for no limit.

    Args:
        template: the chat template.
        given: the request's own number; ``NO_LIMIT`` for none.
        effort: the request's reasoning effort, which a template with ``reasoning_effort`` handles itself.
        default: for a request without either.
    """
    if given is None and "reasoning_effort" not in template and isinstance(effort, str):
        given = EFFORTS.get(effort, NO_LIMIT)
    budget = default if given is None else given
    return None if budget is None or budget < 0 else budget


def marks_of(template: str) -> Marks | None:
    """The marks that a chat template knows; one that never writes their end belongs to a model that does not think."""
    if all(part in template for part in (MESSAGES.opening, MESSAGES.end)):
        return MESSAGES
    return next((marks for marks in (TAGS, CHANNEL) if marks.end in template), None)


def has_switch(template: str) -> bool:
    """Return True if a chat template reads ``enable_thinking``; without it, the variable has no effect."""
    return "enable_thinking" in template


class Mode(Enum):
    """Where an answer begins, by its prompt."""

    NONE = "unchanged"
    PERHAPS = "it thinks if it begins with the marker"
    WITHIN = "the prompt ends in the thought"


def mode_of(marks: Marks | None, prompt_end: str, begun: str) -> Mode:
    """How an answer begins.

    Args:
        marks: of its thoughts; None for a model that has none.
        prompt_end: the last of the prompt as text, ``begun`` included.
        begun: the answer's beginning that the caller gave.
    """
    if marks is None:
        return Mode.NONE
    written = prompt_end[: len(prompt_end) - len(begun)] if prompt_end.endswith(begun) else prompt_end
    if written.rstrip().endswith(marks.opening):
        return Mode.NONE if marks.end in begun else Mode.WITHIN
    if not begun.strip():
        return Mode.NONE if written.rstrip().endswith(marks.end) else Mode.PERHAPS
    return Mode.WITHIN if begun.lstrip().startswith(marks.opening) and marks.end not in begun else Mode.NONE


def rule(mode: Mode, marks: Marks, tokens: Mapping[str, int]) -> str:
    """The rule ``thought`` in llguidance's Lark: the thought with its end and the white space behind.

    Args:
        mode: WITHIN or PERHAPS.
        marks: round the thought.
        tokens: those of them that are special tokens, which no text can be part of, with their ids.
    """
    if marks.turn:
        return _message(mode, marks, tokens)
    if marks.end in tokens:
        begin = f"<[{tokens[marks.begin]}]>" if marks.begin in tokens else json.dumps(marks.begin)
        begin += f" {json.dumps(marks.label)}" if marks.label else ""
        opened = "" if mode is Mode.WITHIN else f"{begin} "
        thought = f"thought: {opened}THOUGHT <[{tokens[marks.end]}]> GAP\nTHOUGHT: {without(marks.end)}\n"
        return f"{thought}GAP: /[ \\n]{{0,4}}/\n"
    begin = "" if mode is Mode.WITHIN else rf"\s*{_escaped(marks.opening)}"
    return f"thought: thinking GAP\nthinking[lazy]: /{begin}(.|\\n)*{_escaped(marks.end)}/\nGAP: /[ \\n]{{0,4}}/\n"


def _message(mode: Mode, marks: Marks, tokens: Mapping[str, int]) -> str:
    """The rule ``thought`` where a thought is a message: up to the head of the next one."""
    end, *behind = (f"<[{tokens[part]}]>" if part in tokens else json.dumps(part) for part in marks.turn)
    label = f"<[{tokens[marks.label]}]>" if marks.label in tokens else json.dumps(marks.label)
    opened = "" if mode is Mode.WITHIN else f"{json.dumps(' ' + marks.begin)} {label} "
    if marks.end in tokens:
        return f"thought: {opened}THOUGHT {end} {' '.join(behind)}\nTHOUGHT: {without(marks.end)}\n"
    return f"thought: {opened}thinking {' '.join(behind)}\nthinking[lazy]: {ANY_TEXT} {end}\n"


def _escaped(text: str) -> str:
    """A text in a pattern between slashes."""
    return re.escape(text).replace("/", "\\/")


class Splitter:
    """Parts what was thought from what is said, as the text comes; by the text alone, whatever pieces it comes in.

    Line ends around a thought are left out, as templates put them there.

    Args:
        mode: where the answer begins.
        marks: of its thoughts.

    Attributes:
        thinking: whether what comes next is thought.
    """

    def __init__(self, mode: Mode, marks: Marks | None = None) -> None:
        self.mode = mode
        self.marks = marks or TAGS
        self.thinking = mode is Mode.WITHIN
        self._undecided = mode is Mode.PERHAPS or (marks is not None and marks.again)
        self._behind = False  # a thought has just ended, and nothing was said since
        self._bare = True  # nothing was thought yet since it began
        self._before = False  # something was, in a thought before
        self._waiting = ""

    def put(self, text: str, *, last: bool) -> list[Thought | str]:
        """New text -> what is certain, in order."""
        self._waiting += text
        found: list[Thought | str] = []
        while True:
            if self.thinking:
                found += self._thought(last=last)
                if self.thinking:
                    return found
            elif self._undecided:
                stripped = self._waiting.lstrip()
                if self._opens(stripped):
                    self.thinking = self._bare = True
                    self._waiting = stripped[len(self.marks.opening) :]
                elif self.marks.opening.startswith(stripped) and not last:
                    return found
                self._undecided = False
            else:
                said, self._waiting = self._waiting, ""
                if self._behind:
                    said = said.lstrip("\n")
                    self._behind = not said
                return [*found, said] if said else found

    def _opens(self, text: str) -> bool:
        return text.startswith(self.marks.opening)

    def _thought(self, *, last: bool) -> list[Thought | str]:
        """What of the thought is certain, in at most one piece."""
        if self._bare:
            self._waiting = self._waiting.lstrip("\n")
        end = self.marks.end
        at = self._waiting.find(end)
        if at >= 0:
            thought, self._waiting = self._waiting[:at].rstrip("\n"), self._waiting[at + len(end) :]
            self.thinking, self._behind, self._undecided = False, True, self.marks.again
        else:
            count = len(self._waiting) - (0 if last else _kept(self._waiting, end))
            thought, self._waiting = self._waiting[:count], self._waiting[count:]
        if not thought:
            return []
        apart = "\n\n" if self._bare and self._before else ""
        self._bare, self._before = False, True
        return [Thought(apart + thought)]


def _kept(text: str, end: str) -> int:
    """Characters at the end that may belong to the end of the thought: line ends, and the beginning of its mark."""
    begun = next((n for n in range(min(len(end) - 1, len(text)), 0, -1) if text.endswith(end[:n])), 0)
    before = text[: len(text) - begun]
    return begun + len(before) - len(before.rstrip("\n"))
