"""The events of a request while it is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import LookaheadError


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model found a token, before temperature, penalties and processors.

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
    """An event. The last one of a request is "finish" or "error".

    Attributes:
        kind: what happened; the other attributes are for the kinds named.
        done, total: "prefill": how many of the prompt's tokens are read, of how many.
        cached: "prefill": how many of them were found in the prefix cache.
        tokens: "tokens": newly committed ids, in order, an end-of-text id included.
        origins: for each of them the drafting source that had put it forward; None = the model's own.
        logprobs: for each of them, where they were wanted.
        prompt_logprobs: "prefill", once, where they were wanted: of each of the prompt's tokens; None for the first.
        reason: "finish": "stop", "length", "context" or "cancelled".
        stats: "finish": of this request alone.
        error: "error": why this request is over; others go on.
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


OnEvent = Callable[[Event], None]
