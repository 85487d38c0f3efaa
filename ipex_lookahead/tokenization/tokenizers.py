"""The tokenizers of this package as tokenizers of transformers, with sandboxed chat templates.

Pipelines run on the ``tokenizers`` library; those with unknown parts run in another process first. SentencePiece models
run on the ``sentencepiece`` package, because the usual conversion orders merges by pairs of pieces instead of the
resulting piece, and differs in runs of equal letters.
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
        """Render chat templates with the arguments of transformers. ``tools`` are JSON schemas or functions.

        Raises:
            InputError: No template, no messages, a rejected conversation, or an unsupported option.
            ModelFormatError: The template is faulty, or exceeds a limit.
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
    """Return the messages of a conversation, without keys that are None, which templates would print."""
    messages = getattr(chat, "messages", chat)
    if not isinstance(messages, Sequence) or not all(isinstance(message, dict) for message in messages):
        raise InputError('a conversation is a list of messages {"role": ..., "content": ...}')
    return [{key: copy.copy(value) for key, value in message.items() if value is not None} for message in messages]


def _mark_end(chat: list[dict[str, Any]]) -> None:
    """Append a mark to the last message, in place."""
    text = chat[-1].get("content") if chat else None
    if not isinstance(text, str):
        raise InputError("continue_final_message needs a last message with a string as content")
    chat[-1]["content"] = text + _END_MARK + " "


def _cut_end(rendered: str) -> str:
    """Return the prompt up to the end of the last message."""
    before, mark, after = rendered.rpartition(_END_MARK)
    if not mark:
        raise InputError("continue_final_message: the chat template does not show the last message")
    return before if after.startswith(" ") else before.rstrip()  # the template trims messages


class BytePairTokenizer(SandboxedChat, PreTrainedTokenizerFast):  # type: ignore[misc, unused-ignore]
    """Byte-pair encoding on the ``tokenizers`` library."""

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Save files that ``AutoTokenizer`` reads with the same ids."""
        written = super().save_pretrained(save_directory, *args, **kwargs)
        for file in written:
            if Path(file).name.endswith("tokenizer.json"):  # without spaces: less than half of the size
                self.backend_tokenizer.save(str(file), pretty=False)
        name_class(save_directory, FAST, padding_side=self.padding_side)
        return written


class RehearsedTokenizer(BytePairTokenizer):
    """A pipeline with any parts, which runs each call in the worker first (``isolated.py``).

    Then the library runs it in this process, with the same time and memory. A text that ends the worker is a
    ModelFormatError and does not run here. Calls of ``backend_tokenizer`` do not use the worker.
    """

    @classmethod
    def of(cls, rehearsal: Any, description: str, options: Mapping[str, Any]) -> RehearsedTokenizer:
        """Return the tokenizer of the description that ``rehearsal``, an ``IsolatedText``, runs."""
        made = cls(tokenizer_object=Tokenizer.from_str(description), **options)
        made._rehearsal = rehearsal
        made.padding_side = "left"  # generation continues at the right end
        return made

    def _encode_plus(self, *args: Any, **kwargs: Any) -> Any:
        names = ("text", "text_pair")
        for text in _texts([*args[:2], *(kwargs[name] for name in names if name in kwargs)]):
            self._rehearsal.encode(text)
        return super()._encode_plus(*args, **kwargs)

    def _batch_encode_plus(self, texts: Any, *args: Any, **kwargs: Any) -> Any:
        """Run each text in the worker first; only transformers 4 has this method."""
        for text in _texts(texts):
            self._rehearsal.encode(text)
        return super()._batch_encode_plus(texts, *args, **kwargs)

    def _decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str:
        given = token_ids["input_ids"] if isinstance(token_ids, dict) else token_ids
        self._rehearsal.decode([given] if isinstance(given, int) else given)
        return str(super()._decode(token_ids, *args, **kwargs))

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        vocab = self.get_vocab()
        self._rehearsal.decode([vocab[token] for token in tokens if token in vocab])
        return str(super().convert_tokens_to_string(list(tokens)))


def _texts(given: Any) -> Iterator[str]:
    """Yield the strings in nested lists."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, list | tuple):
        for item in given:
            yield from _texts(item)


class SentencePieceTokenizer(SandboxedChat, PreTrainedTokenizer):  # type: ignore[misc, unused-ignore]
    """A SentencePiece model with the ids of the ``sentencepiece`` package, and special tokens.

    Texts between special tokens are encoded separately, each with the dummy prefix of the model (Llama-2's original
    behavior, ``legacy=True``).

    Args:
        model: A serialized SentencePiece model, checked by ``sentencepiece_model.py``.
        add_bos_token: Whether to add ``bos_token``; the default is that of Llama.
        add_eos_token: Whether to add ``eos_token``.
        kwargs: Arguments of ``PreTrainedTokenizer``.
    """

    vocab_files_names = {"vocab_file": "tokenizer.model"}  # noqa: RUF012  (transformers' name and type)
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, model: bytes, *, add_bos_token: bool = True, add_eos_token: bool = False, **kwargs: Any) -> None:
        """Load the model. Raises RuntimeError if the sentencepiece package rejects it."""
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
        """Number of pieces, without added tokens."""
        return len(self._pieces)

    def get_vocab(self) -> dict[str, int]:
        return {**{piece: i for i, piece in enumerate(self._pieces)}, **self.added_tokens_encoder}

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return [self._pieces[i] for i in self._core.encode(text)]

    def _convert_token_to_id(self, token: str) -> int:
        return int(self.sp_model.piece_to_id(token))

    def _convert_id_to_token(self, index: int) -> str | None:
        return self._pieces[index] if 0 <= index < len(self._pieces) else None

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return tokens; an id outside of the vocabulary is skipped in a list, and None if single."""
        if isinstance(ids, int):
            return super().convert_ids_to_tokens(ids, skip_special_tokens=skip_special_tokens)
        tokens = super().convert_ids_to_tokens([int(i) for i in ids], skip_special_tokens=skip_special_tokens)
        return [token for token in tokens if token is not None]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
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
        before = [self.bos_token_id] if self.add_bos_token and self.bos_token_id is not None else []
        after = [self.eos_token_id] if self.add_eos_token and self.eos_token_id is not None else []
        second = [] if token_ids_1 is None else before + list(token_ids_1) + after
        return before + list(token_ids_0) + after + second

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
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
        """Save files that ``AutoTokenizer`` reads; see ``saving.py`` for the limits."""
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
        """Pickle the bytes of the model instead of the loaded one."""
        loaded = ("_core", "sp_model", "_pieces")
        return {name: value for name, value in self.__dict__.items() if name not in loaded}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load(self.model)


def _as_fast(tokenizer: Any, core: Tokenizer) -> PreTrainedTokenizerFast:
    """Return transformers' own tokenizer on ``core``, with the settings of ``tokenizer``."""
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
