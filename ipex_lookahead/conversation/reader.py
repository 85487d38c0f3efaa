"""What an answer consists of: thoughts, text and calls of tools, in order."""

from __future__ import annotations

from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.conversation.channels import Plain, splitter_of
from ipex_lookahead.conversation.thinking import Marks, Mode, Thought
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
        self._splitter = splitter_of(mode, marks)
        self._marks = marks
        self._parser = parser

    def again(self, *, pieces: bool = True) -> Reader:
        """Return one that has seen nothing; without ``pieces``, its calls come as a whole."""
        parser = None if self._parser is None else self._parser.again(pieces=pieces)
        return Reader(self._splitter.mode, parser, self._marks)

    @property
    def mode(self) -> Mode:
        """Where the answer begins."""
        return self._splitter.mode

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
            if self._parser is None or isinstance(part, Thought):
                found.append(part)
            elif not isinstance(part, Plain):
                found += self._parser.put(part, last=False)
            elif not self._parser.ended:
                found.append(str(part))
        return found if self._parser is None or not last else [*found, *self._parser.put("", last=True)]
