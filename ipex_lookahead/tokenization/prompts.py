"""Prompts of conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import InputError, LookaheadError
from ipex_lookahead.files.safe_json import has_surrogate
from ipex_lookahead.tokenization.text import TextTokenizer

LLAMA2_VOCABULARY = 32000
"""Size of Llama-2's vocabulary, also of derived models without a chat template."""


def llama2_prompt(user: str, system: str | None = None) -> str:
    """Return one turn in the format of Llama-2's chat models; the tokenizer adds ``<s>``.

    Source: Touvron et al., Llama 2, 2023, and the reference code published with it.
    """
    instructions = "" if system is None else f"<<SYS>>\n{system.strip()}\n<</SYS>>\n\n"
    return f"[INST] {instructions}{user.strip()} [/INST]"


def uses_llama2_format(config: Mapping[str, Any]) -> bool:
    """Return True if prompts of a model without a chat template have Llama-2's format."""
    return config.get("model_type") == "llama" and config.get("vocab_size") == LLAMA2_VOCABULARY


def build_prompt(tokenizer: Any, config: Mapping[str, Any], text: str, system: str | None = None) -> list[int]:
    """Return :func:`conversation_prompt` for one message of the user, after ``system`` if given."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return conversation_prompt(tokenizer, config, [*first, {"role": "user", "content": text}])


def conversation_prompt(
    tokenizer: Any,
    config: Mapping[str, Any],
    messages: Sequence[Mapping[str, str]],
    variables: Mapping[str, Any] | None = None,
    rewrite: Callable[[str], str] | None = None,
) -> list[int]:
    """Return the token ids of the prompt for an answer to the last message, which is the user's.

    The prompt is the tokenizer's chat template with the start of an answer; without one, Llama-2's format for Llama
    models with its vocabulary, with each question in [INST] and an end token after each answer; else the texts, one per
    line, after the system message and an empty line. With a ``TextTokenizer``, control tokens in messages are text
    (:mod:`ipex_lookahead.tokenization.content`).

    Args:
        tokenizer: A ``TextTokenizer`` or a tokenizer of transformers.
        config: The config of the model, with ``model_type`` and ``vocab_size``.
        messages: An optional system message, then alternating messages of user and assistant.
        variables: Further variables of the chat template, such as ``enable_thinking``.
        rewrite: Changes the chat template's text before it is encoded; for a ``TextTokenizer``.

    Raises:
        InputError: The chat template rejects the messages (some have no system message), or a text is not Unicode.
        ModelFormatError: The chat template is faulty, or exceeds a limit.
    """
    if has_surrogate([message["content"] for message in messages]):  # bytes on a command line that are not UTF-8
        raise InputError("the text holds a lone surrogate, which is not a character; it must be valid UTF-8")
    own = isinstance(tokenizer, TextTokenizer)
    if getattr(tokenizer, "chat_template", None):
        given = {**(variables or {}), "add_generation_prompt": True}
        if own:
            return list(tokenizer.prompt_ids(messages, given, rewrite=rewrite))
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, **given)
        return list(tokenizer.encode(rendered, add_special_tokens=False))
    encode = tokenizer.encode_content if own else tokenizer.encode
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    texts = [message["content"] for message in messages[system is not None :]]
    if not uses_llama2_format(config):
        return list(encode("\n".join(texts) if system is None else "\n".join([system, "", *texts])))
    ids: list[int] = []
    for number, text in enumerate(texts):
        if number % 2:
            ids += [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        else:
            ids += encode(llama2_prompt(text, None if number else system))
    return ids


def turn_openings(tokenizer: TextTokenizer) -> list[list[int]]:
    """Return the tokens that a chat template writes before the user's text, such as those of ``<|im_start|>user``.

    There is one sequence between turns, and another one after a system prompt if that differs. Sequences of one or two
    ordinary tokens are skipped.
    """
    if not tokenizer.chat_template:
        return []
    vocabulary = tokenizer.get_vocab()
    added = {vocabulary.get(text) for text in tokenizer.added_tokens}
    found: list[list[int]] = []
    for roles in (("user", "assistant", "user"), ("system", "user")):
        texts = [[_PROBES[0]] * len(roles) for _ in range(3)]
        texts[1][0] = texts[2][-1] = _PROBES[1]
        conversations = [[{"role": r, "content": t} for r, t in zip(roles, one, strict=True)] for one in texts]
        try:
            ids, other_first, other_last = tokenizer.prompts_of(conversations)
        except LookaheadError:  # a template may reject a system message
            continue
        end = _alike(ids, other_last)  # start of the last message's text
        if roles[0] == "system":
            first = len(ids) - _alike(ids[::-1], other_first[::-1])  # end of the first message's text
        else:
            first = end - _alike(ids[:end][::-1], ids[: _alike(ids, other_first)][::-1])
        opening = ids[first:end]
        if (len(opening) > 2 or not added.isdisjoint(opening)) and not any(
            opening[-len(one) :] == one for one in found
        ):
            found.append(opening)
    return found


def turn_starts(ids: npt.NDArray[np.int32], openings: Sequence[Sequence[int]]) -> list[int]:
    """Return the ascending start positions of the user's texts in a prompt, int32 [n]; see :func:`turn_openings`."""
    found: set[int] = set()
    for opening in openings:
        size = len(opening)
        places = np.flatnonzero(ids[: max(0, len(ids) - size + 1)] == opening[0])
        for at, token in enumerate(opening[1:], 1):
            places = places[ids[places + at] == token]
        found.update((places + size).tolist())
    return sorted(found)


def _alike(some: Sequence[int], others: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(some), len(others)))


_PROBES = ("one two", "7 8")
"""Texts that begin and end with different tokens."""
