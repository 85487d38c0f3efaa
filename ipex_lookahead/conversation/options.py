"""Options of one answer in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ipex_lookahead.config import LookaheadConfig


class AnswerOptions(TypedDict, total=False):
    """Options of one answer; those that are left out have the model's recommended values.

    Attributes:
        max_new_tokens: maximum number of tokens of the answer; default 1,024. 0 generates none.
        temperature: 0 always takes the most likely token, 0 to 100. Default: recommended by the model's authors, else
            0.
        top_k: sample from the k most likely tokens only; 0 is all.
        top_p: sample from the most likely tokens up to this total probability, above 0 to 1.
        min_p: drop tokens less than ``min_p`` times as likely as the most likely one, 0 to 1.
        seed: sampling seed. The same seed and the same settings give the same text. Default: fixed; random if
            ``temperature`` is given. ``answer.stats.seed`` is the seed used.
        repetition_penalty: penalty factor for tokens of prompt and answer; 1 is off.
        presence_penalty: OpenAI's presence penalty, -2 to 2.
        frequency_penalty: OpenAI's frequency penalty, -2 to 2.
        stop: a text, or several, before which the answer ends.
        ignore_eos: end tokens of the model do not end the answer.
        min_tokens: minimum number of tokens before an end token can end the answer.
        stop_token_ids: further tokens that end the answer.
        stop_loops: an answer ends when its last 192 tokens are one part of at most 64 tokens again and again, with the
            finish reason "repetition". Default: False.
        lookahead: as for :class:`LLM`, for this answer. It never changes the text.
        adapter: name of an adapter of the LLM; default None, the base model.
        adapter_scale: factor on what the adapter changes, from -100 to 100; default 1. 0 is the base model.
    """

    max_new_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    stop: str | Sequence[str]
    ignore_eos: bool
    min_tokens: int | None
    stop_token_ids: Sequence[int]
    stop_loops: bool
    lookahead: int | str | LookaheadConfig | None
    adapter: str | None
    adapter_scale: float
