"""Arguments of a call that the end of the answer cut: what of them is decided."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.conversation.calls.base import DECODER, json_of

_CUT = -1


def decided(arguments: str) -> dict[str, Any]:
    """Return arguments as an object: of JSON text that was cut, all members and elements that are complete.

    The text is as :func:`~ipex_lookahead.conversation.calls.base.as_json` writes it.
    """
    whole = json_of(arguments)
    if isinstance(whole, dict):
        return whole
    found: Any = _container(arguments, 0)[0] if arguments.startswith("{") else {}
    return found if isinstance(found, dict) else {}


def _container(text: str, at: int) -> tuple[Any, int]:
    """Return the object or the list that begins at a place, and its end; ``_CUT`` where that is not in the text."""
    named = text[at] == "{"
    members: dict[str, Any] = {}
    elements: list[Any] = []
    at += 1
    while at < len(text) and text[at] not in "}]":
        at += 2 * text.startswith(", ", at)
        key = ""
        try:
            if named:
                key, at = DECODER.raw_decode(text, at)
                at += len(": ")
            begins = text[at : at + 1] in ("{", "[")
            value, at = _container(text, at) if begins else DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = _CUT
            break
        members[key] = value
        elements.append(value)
        if at == _CUT:
            break
    ended = 0 <= at < len(text)
    return members if named else elements, at + 1 if ended else _CUT
