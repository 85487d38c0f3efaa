"""The tokenizers this package builds, full ``transformers`` tokenizers with our own chat templates.

Pipelines of parts run on the ``tokenizers`` library, those that anybody may have written after a rehearsal in a process
of its own. SentencePiece models run on the ``sentencepiece`` package itself: the
usual conversion to the other library orders merges by pairs of pieces instead of by the piece they give, and differs in
runs of equal letters.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from ipex_lookahead.errors import InputError
from ipex_lookahead.system.compat import json_schema
from ipex_lookahead.tokenization.chat_template import chat_template_of, render_chats
from ipex_lookahead.tokenization.pieces import MARKER, Pieces
from ipex_lookahead.tokenization.saving import (
    FAST,
    described,
    name_class,
    pattern_of,
    sentencepiece_class,
    sentencepiece_core,
)
from ipex_lookahead.tokenization.sentencepiece_model import read_model

_END_MARK = "\u2063END-OF-THE-LAST-MESSAGE\u2063"


class SandboxedChat:
    """Chat templates rendered by :mod:`ipex_lookahead.tokenization.chat_template`, for any transformers tokenizer."""

    def apply_chat_template(
        self: Any,
        conversation: Any,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: Any = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: Any = None,
        return_dict: bool = True,
        return_assistant_tokens_mask: bool = False,
        tokenizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in ``transformers``, whose names these are. ``tools`` are JSON schemas, or documented functions.

        Raises:
            InputError: no template, no messages, a conversation the template refuses, or an option not supported here.
            ModelFormatError: the template is faulty, or exceeds its budget.
        """
        if return_assistant_tokens_mask:
            raise InputError("return_assistant_tokens_mask is not supported; it must be False")
        if continue_final_message and add_generation_prompt:
            raise InputError("continue_final_message and add_generation_prompt exclude each other; pass one of them")
        if not isinstance(conversation, Sequence) or isinstance(conversation, str) or len(conversation) == 0:
            raise InputError("a conversation is a list of at least one message")
        batched = not isinstance(conversation[0], dict)
        conversations = [_messages(chat) for chat in (conversation if batched else [conversation])]
        if continue_final_message:
            for chat in conversations:
                _mark_end(chat)
        if tools is not None:
            tools = [json_schema(tool) if callable(tool) else tool for tool in tools]
        variables = {"tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt}
        template = chat_template_of(self, chat_template, bool(tools))
        texts = render_chats(template, conversations, {**variables, **self.special_tokens_map, **kwargs})
        if continue_final_message:
            texts = [_cut_end(text) for text in texts]
        rendered = texts if batched else texts[0]
        if not tokenize:
            return rendered
        encoded = self(
            rendered,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            add_special_tokens=False,
            return_tensors=return_tensors,
            **(tokenizer_kwargs or {}),
        )
        return encoded if return_dict else encoded["input_ids"]


def _messages(chat: Any) -> list[dict[str, Any]]:
    """The messages of one conversation, without the keys that are None (templates would print the word)."""
    messages = getattr(chat, "messages", chat)
    if not isinstance(messages, Sequence) or not all(isinstance(message, dict) for message in messages):
        raise InputError('a conversation is a list of messages {"role": ..., "content": ...}')
    return [{key: copy.copy(value) for key, value in message.items() if value is not None} for message in messages]


def _mark_end(chat: list[dict[str, Any]]) -> None:
    """Mark the end of the last message, in place."""
    text = chat[-1].get("content") if chat else None
    if not isinstance(text, str):
        raise InputError("continue_final_message needs a last message whose content is a string")
    chat[-1]["content"] = text + _END_MARK + " "


def _cut_end(rendered: str) -> str:
    """The prompt up to the end of the last message."""
    before, mark, after = rendered.rpartition(_END_MARK)
    if not mark:
        raise InputError("continue_final_message: the chat template does not show the last message")
    return before if after.startswith(" ") else before.rstrip()  # a template that trims also trims what is continued


class BytePairTokenizer(SandboxedChat, PreTrainedTokenizerFast):  # type: ignore[misc, unused-ignore]
    """Byte-pair encoding on the ``tokenizers`` library."""

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """As in ``transformers``, whose own ``AutoTokenizer`` reads what is written with the same ids."""
        written = super().save_pretrained(save_directory, *args, **kwargs)
        for file in written:
            if Path(file).name.endswith("tokenizer.json"):  # again without spaces: less than half as long
                self.backend_tokenizer.save(str(file), pretty=False)
        name_class(save_directory, FAST, padding_side=self.padding_side)
        return written


class RehearsedTokenizer(BytePairTokenizer):
    """A pipeline of any parts. What it encodes and decodes has been through the worker first (``isolated.py``).

    The library does the same again in this process, so that it takes what it took there, within the limits there; a
    text that the worker dies of is a ModelFormatError and never reaches it. Calls of ``backend_tokenizer`` itself have
    no rehearsal.
    """

    @classmethod
    def of(cls, rehearsal: Any, description: str, options: Mapping[str, Any]) -> RehearsedTokenizer:
        """Made of the description that the worker of ``rehearsal``, an ``IsolatedText``, runs already."""
        made = cls(tokenizer_object=Tokenizer.from_str(description), **options)
        made._rehearsal = rehearsal
        made.padding_side = "left"  # generation goes on at the right end
        return made

    def _encode_plus(self, *args: Any, **kwargs: Any) -> Any:
        names = ("text", "text_pair")
        for text in _texts([*args[:2], *(kwargs[name] for name in names if name in kwargs)]):
            self._rehearsal.encode(text)
        return super()._encode_plus(*args, **kwargs)

    def _batch_encode_plus(self, texts: Any, *args: Any, **kwargs: Any) -> Any:
        """In transformers 4, where a batch has a way of its own."""
        for text in _texts(texts):
            self._rehearsal.encode(text)
        return super()._batch_encode_plus(texts, *args, **kwargs)

    def _decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str:
        given = token_ids["input_ids"] if isinstance(token_ids, dict) else token_ids
        self._rehearsal.decode([given] if isinstance(given, int) else given)
        return str(super()._decode(token_ids, *args, **kwargs))

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text of tokens."""
        vocab = self.get_vocab()
        self._rehearsal.decode([vocab[token] for token in tokens if token in vocab])
        return str(super().convert_tokens_to_string(list(tokens)))


def _texts(given: Any) -> Iterator[str]:
    """The strings in lists of lists."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, list | tuple):
        for item in given:
            yield from _texts(item)


class SentencePieceTokenizer(SandboxedChat, PreTrainedTokenizer):  # type: ignore[misc, unused-ignore]
    """A SentencePiece model: ids are exactly the ``sentencepiece`` package's, with the special tokens of Llama.

    Text between special tokens is encoded by itself, each part with the model's dummy prefix (Llama-2's original
    behaviour, ``legacy=True``).

    Args:
        model: a serialised SentencePiece model that ``sentencepiece_model.py`` has checked.
        add_bos_token: whether encoding begins with ``bos_token``; on by default, as for Llama.
        add_eos_token: whether encoding ends with ``eos_token``.
        kwargs: as for ``PreTrainedTokenizer``.
    """

    vocab_files_names = {"vocab_file": "tokenizer.model"}  # noqa: RUF012  (transformers' name and type)
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, model: bytes, *, add_bos_token: bool = True, add_eos_token: bool = False, **kwargs: Any) -> None:
        """Raises RuntimeError where the sentencepiece package does not take the model."""
        self._load(model)
        self.add_bos_token = add_bos_token
        self.add_eos_token = add_eos_token
        super().__init__(add_bos_token=add_bos_token, add_eos_token=add_eos_token, **kwargs)

    def _load(self, model: bytes) -> None:
        self.model = model
        self._core = Pieces(model)
        self.sp_model = self._core.processor
        self._pieces = self._core.texts

    @property
    def vocab_size(self) -> int:
        """Pieces of the model, without added tokens."""
        return len(self._pieces)

    def get_vocab(self) -> dict[str, int]:
        """Piece to id, added tokens included."""
        return {**{piece: i for i, piece in enumerate(self._pieces)}, **self.added_tokens_encoder}

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return [self._pieces[i] for i in self._core.encode(text)]

    def _convert_token_to_id(self, token: str) -> int:
        return int(self.sp_model.piece_to_id(token))

    def _convert_id_to_token(self, index: int) -> str | None:
        return self._pieces[index] if 0 <= index < len(self._pieces) else None

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """As in ``transformers``; an id outside the vocabulary is left out of a list, and None by itself."""
        if isinstance(ids, int):
            return super().convert_ids_to_tokens(ids, skip_special_tokens=skip_special_tokens)
        tokens = super().convert_ids_to_tokens([int(i) for i in ids], skip_special_tokens=skip_special_tokens)
        return [token for token in tokens if token is not None]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text of pieces and special tokens."""
        return self._text([self._convert_token_to_id_with_added_voc(token) for token in tokens])

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else [int(i) for i in token_ids]
        if skip_special_tokens:
            special = set(self.all_special_ids)
            ids = [i for i in ids if i not in special]
        return self._text(ids)

    def _text(self, ids: Sequence[int]) -> str:
        return self._core.decode(ids, {i: token.content for i, token in self._added_tokens_decoder.items()})

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """``bos`` before, ``eos`` after each sequence, where they are switched on."""
        before = [self.bos_token_id] if self.add_bos_token and self.bos_token_id is not None else []
        after = [self.eos_token_id] if self.add_eos_token and self.eos_token_id is not None else []
        second = [] if token_ids_1 is None else before + list(token_ids_1) + after
        return before + list(token_ids_0) + after + second

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 for special tokens, 0 for others."""
        if already_has_special_tokens:
            special = set(self.all_special_ids)
            return [int(i in special) for i in token_ids_0]
        mask: list[int] = []
        for ids in (token_ids_0, token_ids_1):
            if ids is not None:
                bos, eos = int(self.add_bos_token), int(self.add_eos_token)
                mask += [1] * bos + [0] * len(ids) + [1] * eos
        return mask

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """As in ``transformers``, whose own ``AutoTokenizer`` reads what is written; see ``saving.py`` for how well."""
        tokens = dict(self._added_tokens_decoder)
        before = [(self.bos_token, self.bos_token_id)] if self.add_bos_token else []
        after = [(self.eos_token, self.eos_token_id)] if self.add_eos_token else []
        core = sentencepiece_core(read_model(self.model, "tokenizer.model"), tokens, before, after)
        flags = {"add_bos_token": self.add_bos_token, "add_eos_token": self.add_eos_token}
        if core is None:
            written = super().save_pretrained(save_directory, *args, **kwargs)
            around = pattern_of(self.add_bos_token, self.add_eos_token)
            settings = {"special_tokens_pattern": around, "padding_side": self.padding_side, **flags}
            name_class(save_directory, sentencepiece_class(), **settings)
            return written
        written = _as_fast(self, core).save_pretrained(save_directory, *args, **kwargs)
        marker = {MARKER: {"vocabulary": "tokenizer.model"}}
        name_class(save_directory, FAST, added_tokens_decoder=described(tokens), **flags, **marker)
        return (*written, *self.save_vocabulary(str(save_directory)))

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write ``tokenizer.model`` and return its path."""
        path = Path(save_directory) / ((filename_prefix + "-" if filename_prefix else "") + "tokenizer.model")
        path.write_bytes(self.model)
        return (str(path),)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and processes share the bytes of the model, not the loaded one."""
        loaded = ("_core", "sp_model", "_pieces")
        return {name: value for name, value in self.__dict__.items() if name not in loaded}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load(self.model)


def _as_fast(tokenizer: Any, core: Tokenizer) -> PreTrainedTokenizerFast:
    """transformers' own tokenizer on ``core``, with the settings of ``tokenizer``."""
    roles = {role: getattr(tokenizer, role) for role in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        **{role: token for role, token in roles.items() if token is not None},
        additional_special_tokens=list(getattr(tokenizer, "additional_special_tokens", None) or []),
        chat_template=tokenizer.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        model_input_names=["input_ids", "attention_mask"],
    )
