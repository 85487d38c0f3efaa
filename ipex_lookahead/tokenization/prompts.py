"""What a user's text becomes before it is given to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_json import has_surrogate
from ipex_lookahead.tokenization.text import TextTokenizer

LLAMA2_VOCABULARY = 32000
"""Llama-2's vocabulary size, which its descendants without a chat template share."""


def llama2_prompt(user: str, system: str | None = None) -> str:
    """The format that Llama-2's chat models were trained on, for one turn; the tokenizer adds ``<s>``.

    Source: Touvron et al., Llama 2, 2023, and the reference code published with it.
    """
    instructions = "" if system is None else f"<<SYS>>\n{system.strip()}\n<</SYS>>\n\n"
    return f"[INST] {instructions}{user.strip()} [/INST]"


def build_prompt(tokenizer: Any, config: Mapping[str, Any], text: str, system: str | None = None) -> list[int]:
    """Token ids of the prompt for one turn, ``text`` being the user's, after ``system`` if given: see below."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return conversation_prompt(tokenizer, config, [*first, {"role": "user", "content": text}])


def conversation_prompt(
    tokenizer: Any,
    config: Mapping[str, Any],
    messages: Sequence[Mapping[str, str]],
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of the prompt for an answer to the last of some messages, which is the user's.

    The tokenizer's chat template if it has one, the assistant's opening included; else Llama-2's format for Llama
    models with its vocabulary: each question in a [INST] of its own, each answer closed by the end token; else the
    texts as they stand, a line each, after the system message and an empty line. With a ``TextTokenizer`` control
    tokens that the texts spell are text (:mod:`ipex_lookahead.tokenization.content`).

    Args:
        tokenizer: a ``TextTokenizer`` or a ``transformers`` tokenizer.
        config: the model's config, with ``model_type`` and ``vocab_size``.
        messages: perhaps one of the system first, then the user's and the assistant's in turn.
        variables: further ones of the chat template, such as ``enable_thinking``.

    Raises:
        InputError: the chat template refuses the messages (some know no system message), or a text is not Unicode.
        ModelFormatError: the chat template is faulty, or exceeds its budget.
    """
    if has_surrogate([message["content"] for message in messages]):  # bytes on a command line that are not UTF-8
        raise InputError("the text holds a lone surrogate, which is no character; it must be valid UTF-8")
    own = isinstance(tokenizer, TextTokenizer)
    if getattr(tokenizer, "chat_template", None):
        given = {**(variables or {}), "add_generation_prompt": True}
        if own:
            return list(tokenizer.prompt_ids(messages, given))
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, **given)
        return list(tokenizer.encode(rendered, add_special_tokens=False))
    encode = tokenizer.encode_content if own else tokenizer.encode
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    texts = [message["content"] for message in messages[system is not None :]]
    if config.get("model_type") != "llama" or config.get("vocab_size") != LLAMA2_VOCABULARY:
        return list(encode("\n".join(texts) if system is None else "\n".join([system, "", *texts])))
    ids: list[int] = []
    for number, text in enumerate(texts):
        if number % 2:
            ids += [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        else:
            ids += encode(llama2_prompt(text, None if number else system))
    return ids
