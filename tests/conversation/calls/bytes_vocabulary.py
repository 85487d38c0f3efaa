"""A vocabulary of bytes, and of marks that are tokens by themselves, for grammars without a model."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import llguidance
import numpy as np

MARKS = (
    "<|tool_call_start|>", "<|tool_call_end|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<|tool_call|>",
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|start|>", "<|message|>", "<|eom|>",
)  # fmt: skip
END = 256
FIRST = 257


class _Vocabulary:
    tokens = [*(bytes([i]) for i in range(256)), b"<end>", *(mark.encode() for mark in MARKS)]
    special_token_ids = list(range(END, FIRST + len(MARKS)))
    eos_token_id = END
    bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@lru_cache
def _tokenizer() -> Any:
    size = FIRST + len(MARKS)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary()), n_vocab=size, eos_token=[END])


def spell(text: str, tokens: bool) -> str:
    """A mark in a grammar; ``tokens``: those that the vocabulary has are tokens."""
    return f"<[{FIRST + MARKS.index(text)}]>" if tokens and text in MARKS else json.dumps(text)


def ids_of(text: str, tokens: bool) -> list[int]:
    """A text's ids."""
    if tokens:
        for at, mark in enumerate(MARKS):
            before, found, behind = text.partition(mark)
            if found:
                return [*ids_of(before, tokens), FIRST + at, *ids_of(behind, tokens)]
    return list(text.encode())


def matcher_of(grammar: str) -> Any:
    """A state in a grammar; fails where that cannot be compiled."""
    made = llguidance.LLMatcher(_tokenizer(), llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not made.is_error(), f"{made.get_error()}\n{grammar}"
    return made


def takes(grammar: str, text: str, tokens: bool = False) -> bool:
    """Whether a grammar takes a text to its end."""
    matcher, ids = matcher_of(grammar), ids_of(text, tokens)
    return matcher.validate_tokens(ids) == len(ids) and all(map(matcher.consume_token, ids)) and matcher.is_accepting()


CLOSING = ("\n</parameter>\n", "</parameter>", "</param>", "</arg_value>", '<|"|>', '"', "'", "}", "]", ")")


def walked(grammar: str, seed: int, tokens: bool = False, most: int = 1500, letters: Sequence[str] = ()) -> str:
    """A text that a grammar allows, drawn at random; "" where that has no end.

    At random intervals what is open is closed, or one of ``letters`` is written where it is allowed, not as a token.
    """
    matcher, chance, found = matcher_of(grammar), random.Random(seed), bytearray()
    words = _Vocabulary.tokens
    for _ in range(most):
        if matcher.is_accepting() and (matcher.is_stopped() or chance.random() < 0.5):
            return found.decode("utf-8")
        if chance.random() < 0.4:
            every = [*(ids_of(text, tokens) for text in CLOSING), *(list(text.encode()) for text in letters)]
            close = chance.choice(every)
            drawn = close if matcher.validate_tokens(close) == len(close) else []
        else:
            mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            every = [i for i in np.flatnonzero(mask[: len(words)]).tolist() if i != END]
            drawn = [chance.choice([i for i in every if i < 128 or i >= FIRST] or every)]
        assert all(map(matcher.consume_token, drawn))
        found += b"".join(words[token] for token in drawn)
    return ""
