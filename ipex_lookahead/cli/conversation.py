"""The conversation of ``chat`` and its token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]
Encode = Callable[[list[Message]], list[int]]
"""Messages that end with the user's -> token ids of the prompt, with the start of an answer."""


@dataclass(slots=True)
class Turn:
    """A message of the user, the answer, and the token ids of the answer without the end-of-turn token."""

    user: str
    answer: str = ""
    ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Fitted:
    """A prompt that fits the context.

    Attributes:
        ids: Token ids.
        room: Number of new tokens that fit after it, at least 1.
        dropped_turns, dropped_tokens: Number of dropped oldest turns, and of their tokens.
    """

    ids: list[int]
    room: int
    dropped_turns: int = 0
    dropped_tokens: int = 0


class Conversation:
    """The turns of a chat. A prompt has earlier answers as the generated tokens, which are not tokenized again.

    Args:
        encode: Messages -> token ids of the prompt.
        tokenize: Text -> token ids without special tokens.
        system: The system message, or None.
    """

    def __init__(self, encode: Encode, tokenize: Callable[[str], list[int]], system: str | None = None) -> None:
        self.system = system
        self.turns: list[Turn] = []
        self._encode = encode
        self._tokenize = tokenize

    def messages(self, turns: list[Turn]) -> list[Message]:
        """Return the turns as chat messages, without the answer of the last one."""
        found = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            found.append({"role": "user", "content": turn.user})
            found.append({"role": "assistant", "content": turn.answer})
        return found[:-1]

    def prompt(self, turns: list[Turn]) -> list[int]:
        """Return the token ids of the prompt for the last turn.

        The generated ids of an answer replace its tokenization in the prompt, because the text may have several. If the
        template rewrites earlier turns, its ids are used.
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
        """Return the prompt for the last turn with room for ``new_tokens``, without the oldest turns if necessary.

        Returns None if there is no room for a token after the last turn alone.
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
    """Return ``conversation_prompt`` of a model with a cache.

    A template runs in another process, and every turn encodes the earlier ones again. ``variables`` of the template may
    change between turns.
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
