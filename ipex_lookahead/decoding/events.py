"""Events of a request: what a scheduler's step did to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import LookaheadError


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a token, before temperature, penalties and processors.

    Attributes:
        token: its id.
        logprob: natural logarithm of its probability.
        top: (id, logprob) of the most likely tokens, most likely first, the lowest id first among equals.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Event:
    """An event. The last event of a request is "finish" or "error".

    The scheduler sets ``kind``, ``group`` and the attributes of "prefill" and "tokens" without log probabilities;
    ``Service`` adds the others.

    Attributes:
        kind: the other attributes belong to the kinds named.
        done, total: "prefill": number of prompt tokens read, and of all prompt tokens.
        cached: "prefill": number of prompt tokens found in the prefix cache.
        tokens: "tokens": newly committed ids, in order, an end token included.
        origins: "tokens": for each token the source that drafted it; None = the target model's own.
        logprobs: "tokens": for each token, where requested.
        prompt_logprobs: the last "prefill", where requested: for each prompt token; None for the first.
        reason: "finish": "stop", "length", "context" or "cancelled".
        stats: "finish": statistics of this request.
        error: "error": the reason; other requests continue.
        group: the scheduler's number of the group.
        sequence: "tokens": the sequence's ``index``.
    """

    kind: Literal["prefill", "tokens", "finish", "error"]
    done: int = 0
    total: int = 0
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    origins: list[str | None] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    reason: str = ""
    stats: GenerationStats | None = None
    error: LookaheadError | None = None
    group: int = 0
    sequence: int = 0


OnEvent = Callable[[Event], None]
