"""Answers as messages with heads: thoughts, text and calls differ by the recipient. Muse-Glimmer."""

from __future__ import annotations

import re

from ipex_lookahead.conversation.calls.flow import begins
from ipex_lookahead.conversation.thinking import Marks, Mode, Splitter, Thought

_ADDRESS = " to="
_NAME = re.compile(r"[^<\n]*")


class Plain(str):
    """Text to the user, in which there are no calls."""


class Channels(Splitter):
    """Parts an answer of messages; their heads and ends are left out, by the text alone.

    A head is ``<|start|>assistant to=recipient<|message|>``; the prompt has the beginning of the first. Without a
    recipient a message is to the user, and text without a head too. A head that the end of the
    answer cuts is left out.

    Args:
        mode: where the answer begins; NONE is in a message to the user.
        marks: of messages.
    """

    def __init__(self, mode: Mode, marks: Marks) -> None:
        super().__init__(mode, marks)
        self._start = "".join(marks.turn[1:])
        self._to = "" if mode is Mode.PERHAPS else "self" if mode is Mode.WITHIN else "user"
        """Recipient of the present message; "" in a head."""
        self._apart = ""  # goes before the next text to the user
        self._said = False

    def put(self, text: str, *, last: bool) -> list[Thought | str]:
        """See :class:`Splitter`; text to the user is :class:`Plain`."""
        self._waiting += text
        found: list[Thought | str] = []
        while True:
            if self.thinking:
                found += self._thought(last=last)
                if self.thinking:
                    return found
            elif self._to in ("", "self"):  # in a head, or behind a thought
                self._to, count = self._head(self._waiting)
                if not self._to:
                    self._waiting = "" if last else self._waiting
                    return found
                self._waiting = self._waiting[count:]
                self.thinking = self._bare = self._to == "self"
            elif not self._body(found, last=last):
                return found

    def _body(self, found: list[Thought | str], *, last: bool) -> bool:
        """Add what is certain of a message to others; return whether it has ended."""
        at = self._waiting.find(self.marks.end)
        count = at if at >= 0 else len(self._waiting) - (0 if last else begins(self._waiting, self.marks.end))
        said, self._waiting = self._waiting[:count], self._waiting[count:]
        if said and self._to == "user":
            found.append(Plain(self._apart + said))
            self._apart = ""
            self._said = True
        elif said:
            found.append(said)
        if at >= 0:
            self._waiting = self._waiting[len(self.marks.end) :]
            self._apart = "\n\n" if self._said else ""
            self._to = ""
        return at >= 0

    def _head(self, text: str) -> tuple[str, int]:
        """Return the recipient of the message that begins with a text, and the length of its head; "": not certain."""
        at = len(self._start) if text.startswith(self._start) else 0
        if not at and self._start.startswith(text):
            return "", 0
        name = ""
        if text.startswith(_ADDRESS, at):
            named = _NAME.match(text, at + len(_ADDRESS))
            name, at = (named[0], named.end()) if named else ("", at)
        elif _ADDRESS.startswith(text[at:]):
            return "", 0
        label = self.marks.label
        if text.startswith(label, at):
            return name.strip() or "user", at + len(label)
        return ("", 0) if label.startswith(text[at:]) else ("user", 0)


def splitter_of(mode: Mode, marks: Marks | None) -> Splitter:
    """Return what parts an answer with such marks."""
    return Channels(mode, marks) if marks is not None and marks.turn else Splitter(mode, marks)
