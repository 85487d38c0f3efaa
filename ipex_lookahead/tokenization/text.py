"""Text and token ids without transformers: what the commands need of a tokenizer, and nothing else.

Importing transformers takes longer than loading a small model, so a tokenizer is first made here, on the libraries that
do the work, and becomes a full transformers tokenizer only where somebody asks for one (``for_transformers``). Both
give the same ids and the same text. Methods have transformers' names, so a function that takes one takes the other.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer

from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.tokenization.chat_template import Renderer, chat_template_of, render_chats
from ipex_lookahead.tokenization.content import ContentGuard, Encode, respelled
from ipex_lookahead.tokenization.growth import check_ids
from ipex_lookahead.tokenization.pieces import MARKER, Pieces
from ipex_lookahead.tokenization.release import panics_typed
from ipex_lookahead.tokenization.saving import (
    FAST,
    described,
    ends_of,
    pattern_of,
    sentencepiece_class,
    sentencepiece_core,
    write_settings,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MOST_GUARDS = 3
"""Of one tokenizer: for text without a template, and for the one or two templates that models bring."""
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


class TextTokenizer(ABC):
    """A tokenizer.

    Args:
        options: what transformers' constructor takes: a token or None for each of ``ROLES``,
            ``additional_special_tokens``, ``chat_template``, ``model_max_length``, and where it is known
            ``add_bos_token`` and ``add_eos_token``.

    Attributes:
        chat_template: Jinja source, or several by name, or None.
        fill_in_ids: tokens for fill-in-the-middle by llama.cpp's names, as a GGUF file has them; see :mod:`.fill_in`.
        special_tokens_in_content: whether control tokens that messages spell are taken for such; see :mod:`.content`.
    """

    special_tokens_in_content = False
    fill_in_ids: Mapping[str, int] = {}  # replaced, never changed

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self.chat_template: str | dict[str, str] | None = options.get("chat_template")
        self._roles: dict[str, str] = {role: token for role in ROLES if (token := options.get(role)) is not None}
        self._additional: list[str] = list(options.get("additional_special_tokens") or ())
        self._renderer: Renderer | None = None
        self._guards: dict[str, ContentGuard] = {}

    @abstractmethod
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, special tokens that it spells among them; by default with bos and eos round it."""

    def encode_content(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """As ``encode``, but what the text spells is text, unless ``special_tokens_in_content``."""
        if self.special_tokens_in_content:
            return self.encode(text, add_special_tokens)
        return self.encode_text(text, add_special_tokens)

    def encode_text(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """As ``encode``, but what the text spells is text, whatever ``special_tokens_in_content`` says."""
        guard = self._guard("")
        spells = guard.spells(text)
        return guard.encode_as_text(text, add_special_tokens) if spells else self.encode(text, add_special_tokens)

    @property
    @abstractmethod
    def added_tokens(self) -> Mapping[str, bool]:
        """The tokens that are found in a text as they are spelled, and whether each is special."""

    @abstractmethod
    def _respelled(self, spellings: Mapping[str, str]) -> Encode:
        """Encodes as this does, but knows the given added tokens by other spellings alone."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""

    @abstractmethod
    def get_vocab(self) -> dict[str, int]:
        """Token to id, added tokens included."""

    @abstractmethod
    def for_transformers(self) -> PreTrainedTokenizerBase:
        """The same as a transformers tokenizer, padding on the left. Imports transformers."""

    @abstractmethod
    def save_pretrained(self, folder: str) -> None:
        """Write its files into a folder: this package and transformers read them with the same ids (``saving.py``)."""

    @property
    @abstractmethod
    def silent_ids(self) -> frozenset[int]:
        """The ids that ``decode(..., skip_special_tokens=True)`` leaves out."""

    @cached_property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens that have a role or are listed as such."""
        ids = map(self._token_id, (*self._roles.values(), *self._additional))
        return list(dict.fromkeys(i for i in ids if i is not None))

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
        return None if token is None else self._token_id(token)

    @abstractmethod
    def _token_id(self, token: str) -> int | None:
        """The id of a token; None where there is none."""

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
        """The prompt that the chat template makes of messages: text, or ids with ``tokenize`` (``prompt_ids``).

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
        variables = {**others, "tools": tools, "add_generation_prompt": add_generation_prompt}
        if tokenize:
            return self.prompt_ids(conversation, variables)
        return self._rendered(chat_template_of(self, None, bool(tools)), conversation, {**self._own(), **variables})

    def prompt_ids(
        self, conversation: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], answer: str = ""
    ) -> list[int]:
        """Ids of the prompt that the chat template makes of messages.

        What messages, variables and ``answer`` spell is text, never a control token (:mod:`.content`), unless
        ``special_tokens_in_content``.

        Args:
            conversation: messages, ``{"role": ..., "content": ...}`` each.
            variables: the template's, of which ``tools`` may choose it.
            answer: the beginning of an answer, which the prompt ends with.

        Raises:
            InputError: there is no template, or it refuses the messages.
            ModelFormatError: it is faulty.
        """
        template, own = chat_template_of(self, None, for_tools=bool(variables.get("tools"))), self._own()
        if not self.special_tokens_in_content:
            guard = self._guard(template)
            given = {**own, **{name: guard.value(value) for name, value in variables.items()}}
            text = self._rendered(template, guard.messages(conversation), given) + guard.answer(answer)
            if not guard.rewritten(text):
                return guard.encode(text) if guard.marked(text) else self.encode(text, add_special_tokens=False)
        return self.encode(self._rendered(template, conversation, {**own, **variables}) + answer, False)

    def _own(self) -> dict[str, Any]:
        """The template's variables that the tokenizer brings."""
        return {**self._roles, **({"additional_special_tokens": self._additional} if self._additional else {})}

    def keeps_content_apart(self) -> bool:
        """Whether what content spells stays text: not where a template changes what messages say."""
        if self.special_tokens_in_content:
            return False
        if self.chat_template is None:
            return True
        template = chat_template_of(self, None, for_tools=False)
        guard = self._guard(template)
        if not guard.control:
            return True
        said = [{"role": "user", "content": f"one {guard.control[0]} two"}]
        try:
            marked, plain = (self._rendered(template, one, self._own()) for one in (guard.messages(said), said))
        except LookaheadError:  # it wants other messages; then each request is looked at by itself
            return True
        return not guard.rewritten(marked) and guard.without_marks(marked) == plain

    def prompts_of(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
        """Ids of the prompts that the chat template makes of several conversations. Raises as ``prompt_ids``."""
        variables = {**self._own(), "add_generation_prompt": True}
        texts = render_chats(chat_template_of(self, None, for_tools=False), conversations, variables, self._renderer)
        return [self.encode(text, add_special_tokens=False) for text in texts]

    def _rendered(self, template: str, conversation: Sequence[Any], variables: Mapping[str, Any]) -> str:
        return render_chats(template, [conversation], variables, self._renderer)[0]

    def _guard(self, template: str) -> ContentGuard:
        if template not in self._guards:
            if len(self._guards) >= _MOST_GUARDS:
                self._guards.clear()
            self._guards[template] = ContentGuard(self.added_tokens, template, self._respelled)
        return self._guards[template]


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
            core.post_processor = ends_of(options, core.token_to_id)
        self.core = core

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """See :class:`TextTokenizer`."""
        return _encoded(self.core, text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """See :class:`TextTokenizer`."""
        with panics_typed():
            return str(self.core.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        """See :class:`TextTokenizer`."""
        return dict(self.core.get_vocab(with_added_tokens=True))

    def _token_id(self, token: str) -> int | None:
        return self.core.token_to_id(token)

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        """See :class:`TextTokenizer`."""
        return frozenset(i for i, token in self.core.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def added_tokens(self) -> Mapping[str, bool]:
        """See :class:`TextTokenizer`."""
        return {token.content: bool(token.special) for token in self.core.get_added_tokens_decoder().values()}

    def _respelled(self, spellings: Mapping[str, str]) -> Encode:
        core = Tokenizer.from_str(json.dumps(respelled(json.loads(self.core.to_str()), spellings)))

        return lambda text, add_special_tokens: _encoded(core, text, add_special_tokens)

    def for_transformers(self) -> PreTrainedTokenizerBase:
        """See :class:`TextTokenizer`."""
        from ipex_lookahead.tokenization.tokenizers import BytePairTokenizer

        made: PreTrainedTokenizerBase = BytePairTokenizer(tokenizer_object=self.core, **self._options)
        made.padding_side = "left"  # generation goes on at the right end
        return made

    def save_pretrained(self, folder: str) -> None:
        """See :class:`TextTokenizer`."""
        self.core.save(str(Path(folder) / "tokenizer.json"), pretty=False)
        write_settings(folder, FAST, self._options)


_LONG = 1 << 15
"""Characters from which a text is encoded as a batch of one: only for batches the library lets other threads run."""


def _encoded(core: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """The ids of a text."""
    with panics_typed():
        if len(text) < _LONG:
            found = core.encode(text, add_special_tokens=add_special_tokens)
        else:  # the fast one, without the places of tokens, is newer
            batch = getattr(core, "encode_batch_fast", core.encode_batch)
            found = batch([text], add_special_tokens=add_special_tokens)[0]
        ids: list[int] = found.ids
    check_ids(text, ids)
    return ids


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
        ids = self._ids = self.get_vocab()
        for token in (*self._roles.values(), *self._additional):
            self._added.setdefault(ids[token], token)
        self._split = _Splitter({text: i for i, text in self._added.items()}, added)
        self._before = [ids[options["bos_token"]]] if options.get("add_bos_token") else []
        self._after = [ids[options["eos_token"]]] if options.get("add_eos_token") else []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """See :class:`TextTokenizer`."""
        return self._encoded(text, add_special_tokens, self._split, self._pieces)

    def _encoded(self, text: str, add_special_tokens: bool, split: _Splitter, pieces: Pieces) -> list[int]:
        ids: list[int] = []
        for part in split(text):
            ids += [part] if isinstance(part, int) else pieces.encode(part)
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    @cached_property
    def added_tokens(self) -> Mapping[str, bool]:
        """See :class:`TextTokenizer`."""
        special = self.silent_ids
        return {text: i in special or self._tokens[i].special for i, text in self._added.items()}

    def _respelled(self, spellings: Mapping[str, str]) -> Encode:
        from ipex_lookahead.tokenization.sentencepiece_model import USER_DEFINED, read_model

        split = _Splitter({spellings.get(text, text): i for i, text in self._added.items()}, self._tokens)
        model = read_model(self._pieces.model, "tokenizer.model")
        # Of the pieces only those of the user's are found in a text by what they are spelled like.
        known = [
            replace(piece, text=spellings.get(piece.text, piece.text)) if piece.type == USER_DEFINED else piece
            for piece in model.pieces
        ]
        pieces = self._pieces if known == model.pieces else Pieces(replace(model, pieces=known).serialize())
        return lambda text, special: self._encoded(text, special, split, pieces)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """See :class:`TextTokenizer`."""
        left_out = self.silent_ids if skip_special_tokens else ()
        return self._pieces.decode([i for i in token_ids if i not in left_out], self._added)

    def get_vocab(self) -> dict[str, int]:
        """See :class:`TextTokenizer`."""
        return {**{piece: i for i, piece in enumerate(self._pieces.texts)}, **{t: i for i, t in self._added.items()}}

    def _token_id(self, token: str) -> int | None:
        return self._ids.get(token)

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

    def save_pretrained(self, folder: str) -> None:
        """See :class:`TextTokenizer`."""
        from ipex_lookahead.tokenization.sentencepiece_model import read_model

        tokens = {i: AddedToken(text, special=True, normalized=False) for i, text in self._added.items()} | self._tokens
        before, after = ([(self._added[i], i) for i in ids] for ids in (self._before, self._after))
        core = sentencepiece_core(read_model(self._pieces.model, "tokenizer.model"), tokens, before, after)
        (Path(folder) / "tokenizer.model").write_bytes(self._pieces.model)
        added = {"added_tokens_decoder": described(tokens)}
        if core is None:
            around = pattern_of(bool(self._before), bool(self._after))
            write_settings(folder, sentencepiece_class(), self._options, special_tokens_pattern=around, **added)
        else:
            core.save(str(Path(folder) / "tokenizer.json"), pretty=False)
            write_settings(folder, FAST, self._options, **added, **{MARKER: {"vocabulary": "tokenizer.model"}})


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
