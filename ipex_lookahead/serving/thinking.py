"""Thinking aloud: what a model says between ``<think>`` and ``</think>`` before it answers, and where that ends."""

from __future__ import annotations

import json
from enum import Enum

BEGIN, END = "<think>", "</think>"
TAIL = 32
"""Tokens at the end of a prompt that are looked at: a template writes a few behind the last message."""


class Thought(str):
    """Text that was thought, not said."""


class Mode(Enum):
    """Where an answer begins, by its prompt."""

    NONE = "it says what it says"
    PERHAPS = "it thinks if it begins with the marker"
    WITHIN = "the prompt ends in the thought"


def mode_of(template: str, prompt_end: str, begun: str) -> Mode:
    """How an answer begins.

    Args:
        template: the chat template; one that never writes ``</think>`` belongs to a model that does not think so.
        prompt_end: the last of the prompt as text, ``begun`` included.
        begun: the answer's beginning that the caller gave.
    """
    if END not in template:
        return Mode.NONE
    written = prompt_end[: len(prompt_end) - len(begun)] if prompt_end.endswith(begun) else prompt_end
    if written.rstrip().endswith(BEGIN):
        return Mode.NONE if END in begun else Mode.WITHIN
    if not begun.strip():
        return Mode.NONE if written.rstrip().endswith(END) else Mode.PERHAPS
    return Mode.WITHIN if begun.lstrip().startswith(BEGIN) and END not in begun else Mode.NONE


def rule(mode: Mode, markers: dict[str, int]) -> str:
    """The rule ``thought`` in llguidance's Lark: the thought with its end and the white space behind.

    Args:
        mode: WITHIN or PERHAPS.
        markers: those of the two markers that are special tokens, which no text can be part of, with their ids.
    """
    if END in markers:
        begin = f"<[{markers[BEGIN]}]>" if BEGIN in markers else json.dumps(BEGIN)
        opened = "" if mode is Mode.WITHIN else f"{begin} "
        return f"thought: {opened}THOUGHT <[{markers[END]}]> GAP\nTHOUGHT: /(.|\\n)*/\nGAP: /[ \\n]{{0,4}}/\n"
    begin = "" if mode is Mode.WITHIN else r"\s*<think>"
    return f"thought: thinking GAP\nthinking[lazy]: /{begin}(.|\\n)*<\\/think>/\nGAP: /[ \\n]{{0,4}}/\n"


class Splitter:
    """Parts what was thought from what is said, as the text comes; by the text alone, whatever pieces it comes in.

    Line ends around the thought are left out, as templates put them there.

    Attributes:
        thinking: whether what comes next is thought.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.thinking = mode is Mode.WITHIN
        self._undecided = mode is Mode.PERHAPS
        self._behind = False  # the thought has just ended, and nothing was said since
        self._bare = True  # nothing was thought yet
        self._waiting = ""

    def put(self, text: str, *, last: bool) -> tuple[str, str]:
        """New text -> what is certainly thought, and what is certainly said behind it."""
        self._waiting += text
        if self._undecided:
            stripped = self._waiting.lstrip()
            if not stripped.startswith(BEGIN):
                if BEGIN.startswith(stripped) and not last:
                    return "", ""
                self._undecided = False
            else:
                self._undecided, self.thinking = False, True
                self._waiting = stripped[len(BEGIN) :]
        thought = self._thought(last=last) if self.thinking else ""
        if self.thinking:
            return thought, ""
        said, self._waiting = self._waiting, ""
        if self._behind:
            said = said.lstrip("\n")
            self._behind = not said
        return thought, said

    def _thought(self, *, last: bool) -> str:
        if self._bare:
            self._waiting = self._waiting.lstrip("\n")
        at = self._waiting.find(END)
        if at >= 0:
            thought, self._waiting = self._waiting[:at].rstrip("\n"), self._waiting[at + len(END) :]
            self.thinking, self._behind = False, True
            return thought
        kept = 0 if last else _kept(self._waiting)
        count = len(self._waiting) - kept
        thought, self._waiting = self._waiting[:count], self._waiting[count:]
        self._bare = self._bare and not thought
        return thought


def _kept(text: str) -> int:
    """Characters at the end that may belong to the end of the thought: line ends, and the beginning of its marker."""
    begun = next((n for n in range(min(len(END) - 1, len(text)), 0, -1) if text.endswith(END[:n])), 0)
    before = text[: len(text) - begun]
    return begun + len(before) - len(before.rstrip("\n"))
