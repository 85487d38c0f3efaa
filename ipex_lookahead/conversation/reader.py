"""What an answer consists of: thoughts, text and calls of tools, in order."""

from __future__ import annotations

from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.conversation.thinking import Marks, Mode, Splitter, Thought
from ipex_lookahead.conversation.tools import Parser

Part = Thought | str | Call


class Reader:
    """Parts an answer as it comes, by its text alone.

    Args:
        mode: where it begins. Calls are found in what is said, not in what is thought.
        parser: finds calls; None where there are no tools.
        marks: of thoughts; None for a model that has none.
    """

    def __init__(self, mode: Mode = Mode.NONE, parser: Parser | None = None, marks: Marks | None = None) -> None:
        self._splitter = Splitter(mode, marks)
        self._marks = marks
        self._parser = parser

    def again(self) -> Reader:
        """One that has seen nothing."""
        return Reader(self._splitter.mode, None if self._parser is None else self._parser.again(), self._marks)

    @property
    def thinking(self) -> bool:
        """Whether what comes next is thought."""
        return self._splitter.thinking

    @property
    def ends(self) -> bool:
        """Whether it may end the answer."""
        return self._parser is not None and self._parser.one

    @property
    def ended(self) -> bool:
        """Whether it has: with the only call that there may be."""
        return self._parser is not None and self._parser.ended

    def put(self, text: str, *, last: bool) -> list[Part]:
        """New text -> what is certain."""
        found: list[Part] = []
        for part in self._splitter.put(text, last=last):
            found += [part] if self._parser is None or isinstance(part, Thought) else self._parser.put(part, last=False)
        return found if self._parser is None or not last else [*found, *self._parser.put("", last=True)]
