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
    """Token ids of the prompt for one turn.

    The tokenizer's chat template if it has one; else Llama-2's format for Llama models with its vocabulary; else the
    text as it stands, after ``system`` and an empty line if that is given. With a ``TextTokenizer`` control tokens that
    the text spells are text (:mod:`ipex_lookahead.tokenization.content`).

    Args:
        tokenizer: a ``TextTokenizer`` or a ``transformers`` tokenizer.
        config: the model's config, with ``model_type`` and ``vocab_size``.
        text: what the user says.
        system: instructions to the model, if any.

    Raises:
        InputError: the chat template refuses the messages (some know no system message), or a text is not Unicode.
        ModelFormatError: the chat template is faulty, or exceeds its budget.
    """
    for part in (text, system or ""):
        if has_surrogate(part):  # what Python makes of bytes on a command line that are not UTF-8
            raise InputError("the text holds a lone surrogate, which is no character; it must be valid UTF-8")
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": text})
        return chat_prompt(tokenizer, messages)
    encode = tokenizer.encode_content if isinstance(tokenizer, TextTokenizer) else tokenizer.encode
    if config.get("model_type") == "llama" and config.get("vocab_size") == LLAMA2_VOCABULARY:
        return list(encode(llama2_prompt(text, system)))
    return list(encode(text if system is None else f"{system}\n\n{text}"))


def chat_prompt(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Token ids that the chat template makes of messages, the assistant's opening included. Raises as above."""
    if isinstance(tokenizer, TextTokenizer):
        return tokenizer.prompt_ids(messages, {"add_generation_prompt": True})
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(rendered, add_special_tokens=False))
