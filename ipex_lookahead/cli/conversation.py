"""A conversation and the tokens it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]
Encode = Callable[[list[Message]], list[int]]
"""Messages that end with the user's -> the prompt's token ids, the start of an answer included."""


@dataclass(slots=True)
class Turn:
    """What the user said, what the model answered, and the token ids it answered with (no end-of-turn token)."""

    user: str
    answer: str = ""
    ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Fitted:
    """A prompt that fits the context.

    Attributes:
        ids: its token ids.
        room: new tokens that still fit behind it, at least 1.
        dropped_turns, dropped_tokens: what of the oldest was left out to make it fit.
    """

    ids: list[int]
    room: int
    dropped_turns: int = 0
    dropped_tokens: int = 0


class Conversation:
    """Turns in order. The model always sees its own answers as the very tokens it gave, never tokenised anew.

    Args:
        encode: messages -> prompt ids.
        tokenize: text -> ids without special tokens.
        system: the system message, or None.
    """

    def __init__(self, encode: Encode, tokenize: Callable[[str], list[int]], system: str | None = None) -> None:
        self.system = system
        self.turns: list[Turn] = []
        self._encode = encode
        self._tokenize = tokenize

    def messages(self, turns: list[Turn]) -> list[Message]:
        """The turns as chat messages; the last one's answer, if any, is left out."""
        found = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            found.append({"role": "user", "content": turn.user})
            found.append({"role": "assistant", "content": turn.answer})
        return found[:-1]

    def prompt(self, turns: list[Turn]) -> list[int]:
        """The prompt for the last turn's answer.

        The text between two prompts is the answer and what the template puts behind it. Where the answer's own
        tokenisation stands there, the tokens that were generated replace it: they may be split in another way.
        A template that rewrites earlier turns is followed as it is.
        """
        canonical = self._encode(self.messages(turns[:1]))
        kept = list(canonical)
        for index in range(1, len(turns)):
            following = self._encode(self.messages(turns[: index + 1]))
            answered = turns[index - 1]
            own = self._tokenize(answered.answer)
            start, end = len(canonical), len(canonical) + len(own)
            if following[:start] != canonical:
                kept = list(following)
            elif answered.ids and following[start:end] == own:
                kept += answered.ids + following[end:]
            else:
                kept += following[start:]
            canonical = following
        return kept

    def fit(self, turns: list[Turn], context: int, new_tokens: int) -> Fitted | None:
        """The prompt for the last of ``turns`` with room for ``new_tokens``, the oldest turns left out as needed.

        Returns None where even the last turn alone leaves no room for one token.
        """
        everything = ids = self.prompt(turns)
        dropped = 0
        while len(ids) + new_tokens > context and dropped < len(turns) - 1:
            dropped += 1
            ids = self.prompt(turns[dropped:])
        if len(ids) >= context:
            return None
        return Fitted(ids, context - len(ids), dropped, len(everything) - len(ids))


def chat_encoder(tokenizer: Any, config: Mapping[str, Any], variables: Mapping[str, Any] | None = None) -> Encode:
    """``conversation_prompt`` of a model, which remembers what it has encoded.

    A template runs in a process of its own, and every turn encodes those before it again. ``variables``, which are the
    template's, may change from turn to turn.
    """
    from ipex_lookahead.tokenization.prompts import conversation_prompt

    known: dict[Any, list[int]] = {}
    given = {} if variables is None else variables

    def encode(messages: list[Message]) -> list[int]:
        key = (tuple((message["role"], message["content"]) for message in messages), tuple(given.items()))
        if key not in known:
            known[key] = conversation_prompt(tokenizer, config, messages, given)
        return known[key]

    return encode
