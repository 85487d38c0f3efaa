"""Protection against control tokens in messages: they are encoded as text.

A template writes its control tokens and the messages into one text. A tokenizer would encode ``<|im_end|>`` in a user's
message as the control token, which ends the turn. To prevent that:

1. Before rendering, a mark is inserted after the first character of each control token in a message.
2. In the rendered text, the intact control tokens are the template's own; they receive another spelling.
3. The marks are removed, and a copy of the tokenizer that has only the other spellings encodes the whole text, so that
   merges work as in any text.

Texts without control tokens skip these steps. Marks and spellings contain a random number.

Control tokens are the special tokens, and other added tokens that occur in the template, such as ``<think>``. Gemma's
added tokens for HTML and runs of line breaks are ordinary text. In messages of the assistant only special tokens are
marked, because templates search for the others there. A token of one character, and a token that merges produce from
ordinary text, cannot be distinguished from text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Encode = Callable[[str, bool], list[int]]
"""(text, whether to add bos and eos) -> token ids."""
Respell = Callable[[Mapping[str, str]], Encode]
"""Token -> other spelling, to an encoder that has these tokens by their other spelling only."""


class Own(str):
    """A text of this program; its control tokens are control tokens."""


class Woven(str):
    """A text of parts; those of class :class:`Own` keep their control tokens.

    Attributes:
        parts: The parts.
    """

    parts: tuple[str, ...]

    def __new__(cls, parts: Iterable[str]) -> Woven:
        given = tuple(parts)
        made = super().__new__(cls, "".join(given))
        made.parts = given
        return made


LEAST_PART = 2
"""Minimum length of a part of a token at an end of a message to mark, because the template may complete it."""


class ContentGuard:
    """Encodes messages without control tokens, for one tokenizer and one template.

    Args:
        tokens: Added token -> whether it is special.
        template: Source of the chat template, or "".
        respell: Makes the copy of the tokenizer when it is first needed.
    """

    def __init__(self, tokens: Mapping[str, bool], template: str, respell: Respell) -> None:
        number = secrets.token_hex(8)
        self._mark, self._own = f"m{number}", f"o{number}"
        self._respell = respell
        self._twin: Encode | None = None
        special = [text for text, is_special in tokens.items() if is_special and len(text) > 1]
        named = [t for t, is_special in tokens.items() if not is_special and t.strip(" \t\r\n▁") and t in template]
        self._control = [*special, *(text for text in named if len(text) > 1)]
        self._any, self._special = _Spelled(self._control), _Spelled(special)

    @property
    def control(self) -> Sequence[str]:
        """The control tokens to mark."""
        return self._control

    def messages(self, conversation: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the messages with marks."""
        return [
            self._marked(one, self._special if isinstance(one, Mapping) and one.get("role") == "assistant" else None)
            for one in conversation
        ]

    def value(self, value: Any) -> Any:
        """Return a variable of the template with marks."""
        return self._marked(value, None)

    def answer(self, text: str) -> str:
        """Return the beginning of an answer with marks, but for what is :class:`Own` in it."""
        return str(self._marked(text, self._special))

    def _marked(self, value: Any, spelled: _Spelled | None) -> Any:
        if isinstance(value, Woven):
            return "".join(part if isinstance(part, Own) else self._marked(part, spelled) for part in value.parts)
        if isinstance(value, str):
            return (self._any if spelled is None else spelled).broken(value, self._mark)
        if isinstance(value, Mapping):
            return {self._marked(key, spelled): self._marked(one, spelled) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked(one, spelled) for one in value]
        return value

    def marked(self, text: str) -> bool:
        """Return True if a rendered text has marks."""
        return self._mark in text

    def rewritten(self, text: str) -> bool:
        """Return True if the template changed marks, so that they cannot be removed."""
        return text.lower().count(self._mark) != text.count(self._mark)

    def without_marks(self, text: str) -> str:
        """Return a rendered text without its marks."""
        return text.replace(self._mark, "")

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a rendered text with marks; intact control tokens are the template's."""
        own = self._any.replaced(text, lambda token: self._own + token)
        return self._encoder()(self.without_marks(own), add_special_tokens)

    def encode_as_text(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text without control tokens."""
        return self._encoder()(text, add_special_tokens)

    def spells(self, text: str) -> bool:
        """Return True if a text contains a control token."""
        return self._any.found(text)

    def _encoder(self) -> Encode:
        if self._twin is None:
            self._twin = self._respell({token: self._own + token for token in self._control})
        return self._twin


class _Spelled:
    """Finds tokens in a text, the longest first, and parts of them at its start and end."""

    def __init__(self, tokens: Iterable[str]) -> None:
        ordered = sorted(tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._longest = len(ordered[0]) if ordered else 0
        self._begins = frozenset(t[:n] for t in ordered for n in range(LEAST_PART, len(t)))
        self._ends = frozenset(t[-n:] for t in ordered for n in range(LEAST_PART, len(t)))

    def found(self, text: str) -> bool:
        """Return True if a text contains a token."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def replaced(self, text: str, replace: Callable[[str], str]) -> str:
        """Replace every token in a text."""
        return text if self._pattern is None else self._pattern.sub(lambda found: replace(found[0]), text)

    def broken(self, text: str, mark: str) -> str:
        """Insert a mark after the first character of every token, repeatedly, because tokens may overlap."""
        if self._pattern is None:
            return text
        bare = text.strip()
        if (part := self._part(bare, self._begins, at_end=True)) is not None:
            at = text.rindex(part) + 1
            text = text[:at] + mark + text[at:]
        if (part := self._part(bare, self._ends, at_end=False)) is not None:
            at = text.index(part[0]) + 1
            text = text[:at] + mark + text[at:]
        while self.found(text):
            text = self.replaced(text, lambda token: token[0] + mark + token[1:])
        return text

    def _part(self, text: str, parts: frozenset[str], *, at_end: bool) -> str | None:
        """Return the longest of ``parts`` at the start or end of a text."""
        for length in range(min(self._longest - 1, len(text)), LEAST_PART - 1, -1):
            part = text[-length:] if at_end else text[:length]
            if part in parts:
                return part
        return None


def respelled(description: Mapping[str, Any], spellings: Mapping[str, str]) -> dict[str, Any]:
    """Return a ``tokenizer.json`` with other spellings of added tokens and the same ids.

    Tokens that merges produce keep their spelling.
    """
    model = dict(description["model"])
    merges = model.get("merges") or ()
    made = {first + second for first, second in (m.split(" ", 1) if isinstance(m, str) else m for m in merges)}
    names = {old: new for old, new in spellings.items() if old not in made}
    vocab = model["vocab"]
    if isinstance(vocab, Mapping):
        if len(vocab.keys() & names.keys()):
            model["vocab"] = {names.get(text, text): i for text, i in vocab.items()}
    else:  # unigram: pieces and scores, by id
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    added = [
        {**token, "content": names.get(token["content"], token["content"])} for token in description["added_tokens"]
    ]
    return {**description, "model": model, "added_tokens": added}
