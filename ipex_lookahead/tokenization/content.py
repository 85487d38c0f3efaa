"""The words of messages inside a chat template's text: a control token that content spells stays the text it is.

A template writes its control tokens and the messages into one text, and a tokenizer takes for a control token whatever
is spelled like one, so that a user's ``<|im_end|>`` would end his turn. Here it does not:

1. Before rendering, each control token that content spells is broken by a mark behind its first character.
2. What is whole in the rendered text is the template's own, and is given another spelling.
3. The marks are taken out, and a twin of the tokenizer that knows the control tokens by that other spelling alone
   encodes everything at once: merges go across what was broken, as in any text.

Where content spells none, nothing of this is done. Marks and spellings hold a random number that no text can know.

Control tokens are the special ones, and of the other added tokens those that the template itself names, such as
``<think>``: those of Gemma that stand for HTML and runs of line ends are ordinary text. In an assistant's messages only
special ones are broken, since templates look for the others there, and the model has written them. A token of one
character, or one that is also what merges make of ordinary text, cannot be told from text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Encode = Callable[[str, bool], list[int]]
"""(text, whether bos and eos go round it) -> token ids."""
Respell = Callable[[Mapping[str, str]], Encode]
"""From other spellings of tokens: an encoder that knows those tokens by them alone."""


class Own(str):
    """A text that the program itself writes: control tokens in it are meant."""


class Woven(str):
    """A text of parts, of which those that are :class:`Own` keep their control tokens.

    Attributes:
        parts: as given.
    """

    parts: tuple[str, ...]

    def __new__(cls, parts: Iterable[str]) -> Woven:
        """Of parts in order."""
        given = tuple(parts)
        made = super().__new__(cls, "".join(given))
        made.parts = given
        return made


LEAST_PART = 2
"""Characters of a token at an end of content that are broken too: what comes next might complete it."""


class ContentGuard:
    """Keeps content from being taken for control tokens, for one tokenizer and one template.

    Args:
        tokens: the added tokens as they are spelled, and whether each is special.
        template: the chat template's source; "" for none.
        respell: makes the twin, when it is first needed.
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
        """What is broken in content."""
        return self._control

    def messages(self, conversation: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The messages with marks."""
        return [
            self._marked(one, self._special if isinstance(one, Mapping) and one.get("role") == "assistant" else None)
            for one in conversation
        ]

    def value(self, value: Any) -> Any:
        """Any value that a template may write, with marks: tools, documents, further variables."""
        return self._marked(value, None)

    def answer(self, text: str) -> str:
        """The beginning of an answer, with marks."""
        return self._special.broken(text, self._mark)

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
        """Whether a rendered text holds marks: else it is encoded as ever."""
        return self._mark in text

    def rewritten(self, text: str) -> bool:
        """Whether the template has written marks in another way, so that they cannot be taken out."""
        return text.lower().count(self._mark) != text.count(self._mark)

    def without_marks(self, text: str) -> str:
        """As it was rendered without marks."""
        return text.replace(self._mark, "")

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of a rendered text with marks; the control tokens that are whole in it are its own."""
        own = self._any.replaced(text, lambda token: self._own + token)
        return self._encoder()(self.without_marks(own), add_special_tokens)

    def encode_as_text(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of a text in which nothing is a control token."""
        return self._encoder()(text, add_special_tokens)

    def spells(self, text: str) -> bool:
        """Whether a text spells a control token."""
        return self._any.found(text)

    def _encoder(self) -> Encode:
        if self._twin is None:
            self._twin = self._respell({token: self._own + token for token in self._control})
        return self._twin


class _Spelled:
    """Finds tokens as they are spelled, the longest first, and their beginnings and ends at the ends of a text."""

    def __init__(self, tokens: Iterable[str]) -> None:
        ordered = sorted(tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._longest = len(ordered[0]) if ordered else 0
        self._begins = frozenset(t[:n] for t in ordered for n in range(LEAST_PART, len(t)))
        self._ends = frozenset(t[-n:] for t in ordered for n in range(LEAST_PART, len(t)))

    def found(self, text: str) -> bool:
        """Whether a token is spelled in a text."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def replaced(self, text: str, replace: Callable[[str], str]) -> str:
        """Every token in a text replaced."""
        return text if self._pattern is None else self._pattern.sub(lambda found: replace(found[0]), text)

    def broken(self, text: str, mark: str) -> str:
        """A mark behind the first character of every token, until none is left: tokens may overlap."""
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
        """The longest of ``parts`` that a text ends or begins with."""
        for length in range(min(self._longest - 1, len(text)), LEAST_PART - 1, -1):
            part = text[-length:] if at_end else text[:length]
            if part in parts:
                return part
        return None


def respelled(description: Mapping[str, Any], spellings: Mapping[str, str]) -> dict[str, Any]:
    """A ``tokenizer.json`` in which added tokens are spelled otherwise, with the same ids.

    What merges make of ordinary text keeps its spelling.
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
