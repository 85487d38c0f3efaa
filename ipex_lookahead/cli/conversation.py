"""The conversation of ``chat`` and its token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipex_lookahead.cli.chat_images import ChatImage
from ipex_lookahead.errors import ContextLengthError

if TYPE_CHECKING:
    from ipex_lookahead.conversation.model import ChatModel
    from ipex_lookahead.engines.images import PromptImage

Message = dict[str, Any]
"""Role and content: a text, or a list of ``{"type": "image", "image": ChatImage}`` and a part with the text."""
Encode = Callable[[list[Message]], list[int]]
"""Messages that end with the user's -> token ids of the prompt, with the start of an answer."""


@dataclass(slots=True)
class Turn:
    """A message of the user, the answer, the token ids of the answer without the end-of-turn token, and images."""

    user: str
    answer: str = ""
    ids: list[int] = field(default_factory=list)
    images: list[ChatImage] = field(default_factory=list)

    @property
    def content(self) -> Any:
        """The message of the user as chat templates take it: images come before the text."""
        if not self.images:
            return self.user
        text = [{"type": "text", "text": self.user}] if self.user else []
        return [*({"type": "image", "image": one} for one in self.images), *text]


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
            found.append({"role": "user", "content": turn.content})
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
        everything, ids = self._prompt_or_length(turns)
        dropped = 0
        while (ids is None or len(ids) + new_tokens > context) and dropped < len(turns) - 1:
            dropped += 1
            _, ids = self._prompt_or_length(turns[dropped:])
        if ids is None or len(ids) >= context:
            return None
        return Fitted(ids, context - len(ids), dropped, everything - len(ids))

    def with_images(self, turns: list[Turn], ids: list[int]) -> tuple[list[int], Sequence[PromptImage]]:
        """Return the prompt of :meth:`fit` with its images; ``turns`` are all, the oldest of which may be dropped."""
        if not any(turn.images for turn in turns) or not isinstance(self._encode, ChatEncoder):
            return ids, ()
        for first in range(len(turns)):
            if self.prompt(turns[first:]) == ids:
                messages = self.messages(turns[first:])
                images = self._encode.images(messages, ids)
                if images is None:  # an answer has placeholders: the template's text of it has none
                    ids = self._encode(messages)
                    images = self._encode.images(messages, ids) or []
                return ids, images
        raise AssertionError("the prompt is not one of these turns")

    def _prompt_or_length(self, turns: list[Turn]) -> tuple[int, list[int] | None]:
        """Return the length of the prompt and the prompt, or None if its images alone exceed the context."""
        try:
            ids = self.prompt(turns)
        except ContextLengthError as error:
            return error.tokens, None
        return len(ids), ids


class ChatEncoder:
    """``conversation_prompt`` of a model with a cache, and the images of the prompts.

    A template runs in another process, and every turn encodes the earlier ones again.

    Args:
        tokenizer, config: Those of the model.
        variables: Variables of the template, which may change between turns.
        chat: Returns the model for prompts with images.
    """

    def __init__(
        self,
        tokenizer: Any,
        config: Mapping[str, Any],
        variables: Mapping[str, Any] | None = None,
        chat: Callable[[], ChatModel] | None = None,
    ) -> None:
        self._tokenizer, self._config, self._chat = tokenizer, config, chat
        self._variables = {} if variables is None else variables
        self._known: dict[Any, tuple[list[int], Sequence[PromptImage]]] = {}

    def __call__(self, messages: list[Message]) -> list[int]:
        """Return the token ids of a prompt, with a placeholder for each row of its images."""
        return self._encoded(messages)[0]

    def images(self, messages: list[Message], ids: list[int]) -> list[PromptImage] | None:
        """Return the images of a prompt at their places in ``ids``, in which answers may be divided in another way.

        Returns None if the placeholders in ``ids`` are not those of the images: an answer has some.
        """
        _, images = self._encoded(messages)
        if not images or self._chat is None:
            return []
        token = self._chat().image_token
        places, found = [place for place, one in enumerate(ids) if one == token], []
        for image in images:
            own, places = places[: image.count], places[image.count :]
            if own != list(range(own[0], own[0] + image.count) if own else ()):
                return None
            found.append(replace(image, start=own[0]))
        return None if places else found

    def _encoded(self, messages: list[Message]) -> tuple[list[int], Sequence[PromptImage]]:
        key = (tuple((one["role"], _key(one["content"])) for one in messages), tuple(self._variables.items()))
        if key not in self._known:
            self._known[key] = self._encode(messages)
        return self._known[key]

    def _encode(self, messages: list[Message]) -> tuple[list[int], Sequence[PromptImage]]:
        parts = [part for one in messages if isinstance(one["content"], list) for part in one["content"]]
        files = [part["image"].file for part in parts if part["type"] == "image"]
        if not files or self._chat is None:
            from ipex_lookahead.tokenization.prompts import conversation_prompt

            return conversation_prompt(self._tokenizer, self._config, messages, self._variables), ()
        from ipex_lookahead.conversation.request import Conversation as Given
        from ipex_lookahead.conversation.request import request_for

        plain = [{**one, "content": _plain(one["content"])} for one in messages]
        request = request_for(self._chat(), Given(plain, variables=dict(self._variables), images=files))
        return list(request.prompt), request.images


def _key(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return tuple(part["image"].digest if part["type"] == "image" else ("text", part["text"]) for part in content)


def _plain(content: Any) -> Any:
    """Return a content without the files of its images."""
    return (
        content if isinstance(content, str) else [{k: v for k, v in part.items() if k != "image"} for part in content]
    )
