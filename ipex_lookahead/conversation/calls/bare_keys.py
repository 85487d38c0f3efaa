"""Calls as objects with bare keys and strings between special tokens: Gemma 4's style."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from ipex_lookahead.conversation.calls.bare_grammar import Rules
from ipex_lookahead.conversation.calls.bare_values import QUOTE, WORDS, Reader, written
from ipex_lookahead.conversation.calls.base import (
    JSON_TEXT,
    Function,
    Functions,
    Named,
    Spell,
    Style,
    anywhere,
    as_json,
    in_text,
)
from ipex_lookahead.conversation.calls.flow import Flow, Reading, Values, Write, quoted
from ipex_lookahead.conversation.calls.scanner import MOST_DEEP
from ipex_lookahead.tokenization.content import Own

_TEXT = re.compile(rf"{re.escape(QUOTE)}.*?(?:({re.escape(QUOTE)})|\Z)|{JSON_TEXT}", re.DOTALL)
_NAME = re.compile(r"call\s*:\s*([A-Za-z0-9_.-]+)")


class _Bare(Values):
    """Values with bare keys, and with marks around texts."""

    words = {word: as_json(value) for word, value in WORDS.items()}
    most_deep = MOST_DEEP

    def begins_text(self, sign: str) -> bool:
        """See :class:`Values`."""
        return sign in '"<'

    def text(self, flow: Flow, write: Write) -> Reading:
        """See :class:`Values`. Between marks nothing is escaped."""
        if (yield from flow.peek()) == '"':
            yield from self.string(flow, write)
            return
        yield from flow.either(QUOTE)
        yield from flow.verbatim(QUOTE, lambda text: write(quoted(text)))

    def key(self, flow: Flow) -> Generator[None, None, str]:
        """See :class:`Values`."""
        sign = yield from flow.sign()
        if sign == '"':
            return (yield from super().key(flow))
        if sign == "<":
            yield from flow.either(QUOTE)
            return (yield from flow.until(QUOTE))
        found = ""
        while (yield from flow.peek()) not in ':,{}[]"':
            found += yield from flow.taken()
        return found.strip()


_BARE = _Bare()


class BareKeys(Style):
    """``<|tool_call>call:name{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>``: Gemma 4.

    Keys are in the order of Jinja's ``dictsort``, in which the template lists parameters and repeats calls.
    """

    markers = ("<|tool_call>",)
    end = "<tool_call|>"
    inner = (QUOTE,)

    def calls(self, body: str, functions: Functions) -> list[Named] | None:
        """See :class:`Style`."""
        reader = Reader(body)
        try:
            name = reader.matched(_NAME)[1]
            arguments = reader.mapping()
            reader.ended()
        except ValueError:
            return None
        return [(name, arguments)]

    def read(self, flow: Flow, functions: Functions) -> Reading:
        """See :class:`Style`."""
        yield from flow.either("call")
        yield from flow.either(":")
        flow.begin((yield from flow.until("{")).strip())
        yield from _BARE.mapping(flow, flow.write, 0)
        flow.end()

    def holds(self, body: str, functions: Functions) -> bool:
        """See :class:`Style`."""
        return in_text(body, _TEXT)

    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """See :class:`Style`."""
        call = f"call: {spell(self.markers[0])} {self._behind(functions, spell)}\n"
        return f"calls: call{'' if one else '+'}\n{call}{self._rules(functions, spell)}"

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str:
        """See :class:`Style`."""
        return anywhere(self.markers[0], spell, self._behind(functions, spell)) + self._rules(functions, spell)

    def _behind(self, functions: Sequence[Function], spell: Spell) -> str:
        return f'"call:" ({" | ".join(f"f{at}" for at in range(len(functions)))}) {spell(self.end)}'

    def _rules(self, functions: Sequence[Function], spell: Spell) -> str:
        rules = Rules(spell)
        for at, function in enumerate(functions):
            rules.function(f"f{at}", function)
        return rules.text

    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """See :class:`Style`."""
        found: list[str] = []
        for name, arguments in calls:
            found += [Own(self.markers[0]), f"call:{name}", *written(arguments), Own(self.end)]
        return found
