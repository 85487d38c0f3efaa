"""Tokenizers without transformers, on the libraries that transformers uses.

Importing transformers takes longer than loading a small model. ``for_transformers`` converts a tokenizer to one of
transformers, with the same ids and the same text. Methods have the names of transformers, so that functions accept
either kind.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer

from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.tokenization.chat_template import Renderer, chat_template_of, render_chats
from ipex_lookahead.tokenization.content import ContentGuard, Encode, respelled
from ipex_lookahead.tokenization.growth import check_ids
from ipex_lookahead.tokenization.layout import Layout
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
"""Maximum number of guards: for text without a template, and for the one or two templates of a model."""
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


class TextTokenizer(ABC):
    """A tokenizer.

    Args:
        options: Arguments of transformers' constructor: a token or None for each of ``ROLES``,
            ``additional_special_tokens``, ``chat_template``, ``model_max_length``, and if known ``add_bos_token`` and
            ``add_eos_token``.

    Attributes:
        chat_template: Jinja source, several by name, or None.
        fill_in_ids: Ids for fill-in-the-middle by llama.cpp's names, from a GGUF file; see :mod:`.fill_in`.
        special_tokens_in_content: Whether control tokens in messages are control tokens; see :mod:`.content`.
    """

    special_tokens_in_content = False
    fill_in_ids: Mapping[str, int] = {}  # replaced, never modified

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self.chat_template: str | dict[str, str] | None = options.get("chat_template")
        self._roles: dict[str, str] = {role: token for role in ROLES if (token := options.get(role)) is not None}
        self._additional: list[str] = list(options.get("additional_special_tokens") or ())
        self._renderer: Renderer | None = None
        self._guards: dict[str, ContentGuard] = {}

    @abstractmethod
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, which may contain special tokens; by default with bos and eos."""

    def encode_content(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; special tokens are text unless ``special_tokens_in_content``."""
        if self.special_tokens_in_content:
            return self.encode(text, add_special_tokens)
        return self.encode_text(text, add_special_tokens)

    def encode_text(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of a text; special tokens are always text."""
        guard = self._guard("")
        spells = guard.spells(text)
        return guard.encode_as_text(text, add_special_tokens) if spells else self.encode(text, add_special_tokens)

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The special tokens that ``encode`` adds, and those of a pair."""

    @property
    @abstractmethod
    def added_tokens(self) -> Mapping[str, bool]:
        """Added token -> whether it is special."""

    @property
    def model_max_length(self) -> int | None:
        """Largest number of tokens of a text by the tokenizer's files, or None."""
        found: int | None = self._options.get("model_max_length")
        return found

    @abstractmethod
    def _respelled(self, spellings: Mapping[str, str]) -> Encode:
        """Return an encoder that has the given added tokens by other spellings only."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""

    @abstractmethod
    def get_vocab(self) -> dict[str, int]:
        """Return token -> id, including added tokens."""

    @abstractmethod
    def for_transformers(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer as one of transformers, with padding on the left. Imports transformers."""

    @abstractmethod
    def save_pretrained(self, folder: str) -> None:
        """Save the tokenizer for this package and for transformers, with the same ids (``saving.py``)."""

    @property
    @abstractmethod
    def silent_ids(self) -> frozenset[int]:
        """The ids that ``decode(..., skip_special_tokens=True)`` skips."""

    @cached_property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens with a role, and of additional ones."""
        ids = map(self._token_id, (*self._roles.values(), *self._additional))
        return list(dict.fromkeys(i for i in ids if i is not None))

    @property
    def bos_token_id(self) -> int | None:
        """Id of the beginning-of-sequence token, or None."""
        return self._id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end-of-sequence token, or None."""
        return self._id("eos_token")

    def _id(self, role: str) -> int | None:
        token = self._roles.get(role)
        return None if token is None else self._token_id(token)

    @abstractmethod
    def _token_id(self, token: str) -> int | None:
        """Return the id of a token, or None."""

    def render_often(self) -> None:
        """Start a ``Renderer``: it takes 15 MB, and reduces the time of a template from 80 to 3 ms."""
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
        """Return the prompt of messages: text, or ids with ``tokenize`` (``prompt_ids``).

        Args:
            conversation: Messages ``{"role": ..., "content": ...}``.
            add_generation_prompt: Whether to add the start of an answer.
            tokenize: Whether to return ids.
            tools: JSON schemas of functions.
            others: Further variables of the template (``enable_thinking``, ``documents``, ...).

        Raises:
            InputError: There is no template, or it rejects the messages.
            ModelFormatError: The template is faulty.
        """
        variables = {**others, "tools": tools, "add_generation_prompt": add_generation_prompt}
        if tokenize:
            return self.prompt_ids(conversation, variables)
        return self._rendered(chat_template_of(self, None, bool(tools)), conversation, {**self._own(), **variables})

    def prompt_ids(
        self,
        conversation: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        answer: str = "",
        rewrite: Callable[[str], str] | None = None,
    ) -> list[int]:
        """Return the token ids of the prompt of messages.

        Control tokens in messages, variables and ``answer`` are text (:mod:`.content`), unless
        ``special_tokens_in_content``.

        Args:
            conversation: Messages ``{"role": ..., "content": ...}``.
            variables: Variables of the template; ``tools`` may select another template.
            answer: Beginning of the answer, at the end of the prompt.
            rewrite: Changes the template's text before it is encoded, such as its places for images. Control tokens in
                messages do not occur in that text as they are.

        Raises:
            InputError: There is no template, or it rejects the messages.
            ModelFormatError: The template is faulty.
        """
        changed = rewrite or str
        template, own = chat_template_of(self, None, for_tools=bool(variables.get("tools"))), self._own()
        if not self.special_tokens_in_content:
            guard = self._guard(template)
            given = {**own, **{name: guard.value(value) for name, value in variables.items()}}
            text = changed(self._rendered(template, guard.messages(conversation), given)) + guard.answer(answer)
            if not guard.rewritten(text):
                return guard.encode(text) if guard.marked(text) else self.encode(text, add_special_tokens=False)
        return self.encode(changed(self._rendered(template, conversation, {**own, **variables})) + answer, False)

    def _own(self) -> dict[str, Any]:
        """Return the tokenizer's variables of the template."""
        return {**self._roles, **({"additional_special_tokens": self._additional} if self._additional else {})}

    def keeps_content_apart(self) -> bool:
        """Return True if control tokens in messages are text; not if the template changes the texts of messages."""
        if self.special_tokens_in_content:
            return False
        if self.chat_template is None:
            return True
        template = chat_template_of(self, None, for_tools=False)
        guard = self._guard(template)
        if not guard.control:
            return True
        messages = [{"role": "user", "content": f"one {guard.control[0]} two"}]
        try:
            marked, plain = (self._rendered(template, one, self._own()) for one in (guard.messages(messages), messages))
        except LookaheadError:  # it needs other messages; each request is checked anyway
            return True
        return not guard.rewritten(marked) and guard.without_marks(marked) == plain

    def prompts_of(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
        """Return the token ids of the prompts of several conversations. Raises the errors of ``prompt_ids``."""
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
    """Byte-pair encoding, WordPiece or a unigram model on the ``tokenizers`` library.

    Args:
        core: A tokenizer of the library without truncation and padding; it is modified.
        options: See :class:`TextTokenizer`. Without flags for bos and eos, the post-processor of ``core`` is kept.
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
        return _encoded(self.core, text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        with panics_typed():
            return str(self.core.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        return dict(self.core.get_vocab(with_added_tokens=True))

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.core.post_processor)

    def _token_id(self, token: str) -> int | None:
        return self.core.token_to_id(token)

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        return frozenset(i for i, token in self.core.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def added_tokens(self) -> Mapping[str, bool]:
        return {token.content: bool(token.special) for token in self.core.get_added_tokens_decoder().values()}

    def _respelled(self, spellings: Mapping[str, str]) -> Encode:
        core = Tokenizer.from_str(json.dumps(respelled(json.loads(self.core.to_str()), spellings)))

        return lambda text, add_special_tokens: _encoded(core, text, add_special_tokens)

    def for_transformers(self) -> PreTrainedTokenizerBase:
        from ipex_lookahead.tokenization.tokenizers import BytePairTokenizer

        made: PreTrainedTokenizerBase = BytePairTokenizer(tokenizer_object=self.core, **self._options)
        made.padding_side = "left"  # generation continues at the right end
        return made

    def save_pretrained(self, folder: str) -> None:
        self.core.save(str(Path(folder) / "tokenizer.json"), pretty=False)
        write_settings(folder, FAST, self._options)


_LONG = 1 << 15
"""Minimum characters to encode a text as a batch of one: the library releases the GIL for batches only."""


def _encoded(core: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    with panics_typed():
        if len(text) < _LONG:
            found = core.encode(text, add_special_tokens=add_special_tokens)
        else:  # encode_batch_fast, without offsets, is newer
            batch = getattr(core, "encode_batch_fast", core.encode_batch)
            found = batch([text], add_special_tokens=add_special_tokens)[0]
        ids: list[int] = found.ids
    check_ids(text, ids)
    return ids


class SentencePieceText(TextTokenizer):
    """A SentencePiece model with special tokens; the texts between them are encoded separately.

    Args:
        model: See :class:`Pieces`.
        added: Id -> added token.
        options: See :class:`TextTokenizer`.
    """

    def __init__(self, model: bytes, added: Mapping[int, AddedToken], options: Mapping[str, Any]) -> None:
        """Load the model. Raises RuntimeError if the sentencepiece package rejects it."""
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
        return self._encoded(text, add_special_tokens, self._split, self._pieces)

    @property
    def layout(self) -> Layout:
        return Layout.around(self._before, self._after)

    def _encoded(self, text: str, add_special_tokens: bool, split: _Splitter, pieces: Pieces) -> list[int]:
        ids: list[int] = []
        for part in split(text):
            ids += [part] if isinstance(part, int) else pieces.encode(part)
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    @cached_property
    def added_tokens(self) -> Mapping[str, bool]:
        special = self.silent_ids
        return {text: i in special or self._tokens[i].special for i, text in self._added.items()}

    def _respelled(self, spellings: Mapping[str, str]) -> Encode:
        from ipex_lookahead.tokenization.sentencepiece_model import USER_DEFINED, read_model

        split = _Splitter({spellings.get(text, text): i for i, text in self._added.items()}, self._tokens)
        model = read_model(self._pieces.model, "tokenizer.model")
        # Only user-defined pieces are found in a text by their spelling.
        known = [
            replace(piece, text=spellings.get(piece.text, piece.text)) if piece.type == USER_DEFINED else piece
            for piece in model.pieces
        ]
        pieces = self._pieces if known == model.pieces else Pieces(replace(model, pieces=known).serialize())
        return lambda text, special: self._encoded(text, special, split, pieces)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        left_out = self.silent_ids if skip_special_tokens else ()
        return self._pieces.decode([i for i in token_ids if i not in left_out], self._added)

    def get_vocab(self) -> dict[str, int]:
        return {**{piece: i for i, piece in enumerate(self._pieces.texts)}, **{t: i for i, t in self._added.items()}}

    def _token_id(self, token: str) -> int | None:
        return self._ids.get(token)

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        return frozenset(self.all_special_ids)

    def for_transformers(self) -> PreTrainedTokenizerBase:
        from ipex_lookahead.tokenization.tokenizers import SentencePieceTokenizer

        made: PreTrainedTokenizerBase = SentencePieceTokenizer(
            self._pieces.model, added_tokens_decoder=self._tokens, **self._options
        )
        made.padding_side = "left"  # generation continues at the right end
        return made

    def save_pretrained(self, folder: str) -> None:
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
    """Splits a text at added tokens, the longest first.

    Args:
        ids: Spelling -> id.
        tokens: Id -> token, for tokens that may remove white space before or after them.
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
        """Yield the ids of added tokens and the non-empty texts between them, in order."""
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
                start = at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it always matches
        if start < len(text):
            yield text[start:]


_SPACE = re.compile(r"\s*")
