"""Text and token ids without transformers: what the commands need of a tokenizer, and nothing else.

Importing transformers takes longer than loading a small model, so a tokenizer is first made here, on the libraries that
do the work, and becomes a full transformers tokenizer only where somebody asks for one (``for_transformers``). Both
give the same ids and the same text. Methods have transformers' names, so a function that takes one takes the other.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, processors

from ipex_lookahead.tokenization.chat_template import Renderer, chat_template_of, render_chats
from ipex_lookahead.tokenization.growth import check_ids
from ipex_lookahead.tokenization.pieces import Pieces
from ipex_lookahead.tokenization.release import panics_typed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


class TextTokenizer(ABC):
    """A tokenizer.

    Args:
        options: what transformers' constructor takes: a token or None for each of ``ROLES``,
            ``additional_special_tokens``, ``chat_template``, ``model_max_length``, and where it is known
            ``add_bos_token`` and ``add_eos_token``.

    Attributes:
        chat_template: Jinja source, or several by name, or None.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self.chat_template: str | dict[str, str] | None = options.get("chat_template")
        self._roles: dict[str, str] = {role: token for role in ROLES if (token := options.get(role)) is not None}
        self._additional: list[str] = list(options.get("additional_special_tokens") or ())
        self._renderer: Renderer | None = None

    @abstractmethod
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, special tokens that it spells among them; by default with bos and eos round it."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""

    @abstractmethod
    def get_vocab(self) -> dict[str, int]:
        """Token to id, added tokens included."""

    @abstractmethod
    def for_transformers(self) -> PreTrainedTokenizerBase:
        """The same as a transformers tokenizer, padding on the left. Imports transformers."""

    @property
    @abstractmethod
    def silent_ids(self) -> frozenset[int]:
        """The ids that ``decode(..., skip_special_tokens=True)`` leaves out."""

    @cached_property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens that have a role or are listed as such."""
        ids = self.get_vocab()
        return list(dict.fromkeys(ids[token] for token in (*self._roles.values(), *self._additional)))

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that begins a text, or None."""
        return self._id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of the token that ends a text, or None."""
        return self._id("eos_token")

    def _id(self, role: str) -> int | None:
        token = self._roles.get(role)
        return None if token is None else self.get_vocab()[token]

    def render_often(self) -> None:
        """From now on a process is kept that others are forked from: some 15 MB, and 3 ms for a template, not 80."""
        if self._renderer is None:
            self._renderer = Renderer()

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **others: Any,
    ) -> Any:
        """The prompt that the chat template makes of messages: text, or ids with ``tokenize``.

        Args:
            conversation: messages, ``{"role": ..., "content": ...}`` each.
            add_generation_prompt: whether it should end with the assistant's opening.
            tokenize: see above.
            tools: JSON schemas of functions that may be called.
            others: further variables of the template (``enable_thinking``, ``documents``, ...).

        Raises:
            InputError: there is no template, or it refuses the messages.
            ModelFormatError: it is faulty.
        """
        variables: dict[str, Any] = {**self._roles, "tools": tools, "add_generation_prompt": add_generation_prompt}
        if self._additional:
            variables["additional_special_tokens"] = self._additional
        template = chat_template_of(self, None, for_tools=bool(tools))
        text = render_chats(template, [conversation], variables | others, self._renderer)[0]
        return self.encode(text, add_special_tokens=False) if tokenize else text


class BytePairText(TextTokenizer):
    """Byte-pair encoding on the ``tokenizers`` library.

    Args:
        core: its tokenizer, without truncation and padding; changed here.
        options: see :class:`TextTokenizer`. Where it says nothing of bos and eos, ``core``'s own way of adding them is
            kept.
    """

    def __init__(self, core: Tokenizer, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        known = {token.content for token in core.get_added_tokens_decoder().values()}
        named = dict.fromkeys((*self._roles.values(), *self._additional))
        core.add_special_tokens([AddedToken(token, special=True) for token in named if token not in known])
        if "add_bos_token" in options or "add_eos_token" in options:
            before = [options["bos_token"]] if options.get("add_bos_token") else []
            after = [options["eos_token"]] if options.get("add_eos_token") else []
            core.post_processor = _around(before, after, core)
        self.core = core

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """See :class:`TextTokenizer`."""
        with panics_typed():
            ids: list[int] = self.core.encode(text, add_special_tokens=add_special_tokens).ids
        check_ids(text, ids)
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """See :class:`TextTokenizer`."""
        with panics_typed():
            return str(self.core.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        """See :class:`TextTokenizer`."""
        return dict(self.core.get_vocab(with_added_tokens=True))

    def _id(self, role: str) -> int | None:
        token = self._roles.get(role)
        return None if token is None else self.core.token_to_id(token)

    @cached_property
    def all_special_ids(self) -> list[int]:
        """See :class:`TextTokenizer`."""
        ids = [self.core.token_to_id(token) for token in (*self._roles.values(), *self._additional)]
        return list(dict.fromkeys(i for i in ids if i is not None))

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        """See :class:`TextTokenizer`."""
        return frozenset(i for i, token in self.core.get_added_tokens_decoder().items() if token.special)

    def for_transformers(self) -> PreTrainedTokenizerBase:
        """See :class:`TextTokenizer`."""
        from ipex_lookahead.tokenization.tokenizers import BytePairTokenizer

        made: PreTrainedTokenizerBase = BytePairTokenizer(tokenizer_object=self.core, **self._options)
        made.padding_side = "left"  # generation goes on at the right end
        return made


def _around(before: Sequence[str], after: Sequence[str], core: Tokenizer) -> Any:
    """A post-processor that puts special tokens round a text, and round the second of a pair."""
    tokens = dict.fromkeys((*before, *after))
    return processors.TemplateProcessing(
        single=[*(f"{t}:0" for t in before), "$A:0", *(f"{t}:0" for t in after)],
        pair=[
            *(f"{t}:0" for t in before), "$A:0", *(f"{t}:0" for t in after),
            *(f"{t}:1" for t in before), "$B:1", *(f"{t}:1" for t in after),
        ],
        special_tokens=[(token, core.token_to_id(token)) for token in tokens],
    )  # fmt: skip


class SentencePieceText(TextTokenizer):
    """A SentencePiece model with special tokens, text between which is encoded by itself.

    Args:
        model: see :class:`Pieces`.
        added: ids of the tokens that are found in text as they are spelled.
        options: see :class:`TextTokenizer`.
    """

    def __init__(self, model: bytes, added: Mapping[int, AddedToken], options: Mapping[str, Any]) -> None:
        """Raises RuntimeError where the sentencepiece package does not take the model."""
        super().__init__(options)
        self._pieces = Pieces(model)
        self._tokens = dict(added)
        self._added = {i: token.content for i, token in added.items()}
        ids = self.get_vocab()
        for token in (*self._roles.values(), *self._additional):
            self._added.setdefault(ids[token], token)
        self._split = _Splitter({text: i for i, text in self._added.items()}, added)
        self._before = [ids[options["bos_token"]]] if options.get("add_bos_token") else []
        self._after = [ids[options["eos_token"]]] if options.get("add_eos_token") else []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """See :class:`TextTokenizer`."""
        ids: list[int] = []
        for part in self._split(text):
            ids += [part] if isinstance(part, int) else self._pieces.encode(part)
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """See :class:`TextTokenizer`."""
        left_out = self.silent_ids if skip_special_tokens else ()
        return self._pieces.decode([i for i in token_ids if i not in left_out], self._added)

    def get_vocab(self) -> dict[str, int]:
        """See :class:`TextTokenizer`."""
        return {**{piece: i for i, piece in enumerate(self._pieces.texts)}, **{t: i for i, t in self._added.items()}}

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        """See :class:`TextTokenizer`."""
        return frozenset(self.all_special_ids)

    def for_transformers(self) -> PreTrainedTokenizerBase:
        """See :class:`TextTokenizer`."""
        from ipex_lookahead.tokenization.tokenizers import SentencePieceTokenizer

        made: PreTrainedTokenizerBase = SentencePieceTokenizer(
            self._pieces.model, added_tokens_decoder=self._tokens, **self._options
        )
        made.padding_side = "left"  # generation goes on at the right end
        return made


class _Splitter:
    """Text into the added tokens that it spells, the longest first, and what lies between.

    Args:
        ids: by spelling.
        tokens: by id, those of which more is known than that: whether they take the white space beside them.
    """

    def __init__(self, ids: Mapping[str, int], tokens: Mapping[int, AddedToken]) -> None:
        self._ids = ids
        self._before = frozenset(i for i, token in tokens.items() if token.lstrip)
        self._behind = frozenset(i for i, token in tokens.items() if token.rstrip)
        self._lengths: dict[str, list[int]] = {}
        for text in sorted(ids, key=len, reverse=True):
            lengths = self._lengths.setdefault(text[0], [])
            if not lengths or lengths[-1] != len(text):
                lengths.append(len(text))
        self._first = re.compile("[" + "".join(map(re.escape, self._lengths)) + "]") if ids else None

    def __call__(self, text: str) -> Iterator[int | str]:
        """Ids of added tokens and the texts between them, in order; no text is empty."""
        start = at = 0
        while self._first is not None and (found := self._first.search(text, at)) is not None:
            at = found.start()
            spelled = (text[at : at + length] for length in self._lengths[text[at]])
            token = next((candidate for candidate in spelled if candidate in self._ids), None)
            if token is None:
                at += 1
                continue
            i = self._ids[token]
            between = text[start:at].rstrip() if i in self._before else text[start:at]
            if between:
                yield between
            yield i
            start = at = at + len(token)
            if i in self._behind:
                start = at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too
        if start < len(text):
            yield text[start:]


_SPACE = re.compile(r"\s*")
