"""Calls as objects with bare keys and strings between special tokens: Gemma 4's style."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ipex_lookahead.conversation.calls.bare_grammar import Rules
from ipex_lookahead.conversation.calls.bare_values import QUOTE, Reader, written
from ipex_lookahead.conversation.calls.base import (
    JSON_TEXT,
    Function,
    Functions,
    Named,
    Spell,
    Style,
    anywhere,
    in_text,
)
from ipex_lookahead.tokenization.content import Own

_TEXT = re.compile(rf"{re.escape(QUOTE)}.*?(?:({re.escape(QUOTE)})|\Z)|{JSON_TEXT}", re.DOTALL)
_NAME = re.compile(r"call\s*:\s*([A-Za-z0-9_.-]+)")


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
