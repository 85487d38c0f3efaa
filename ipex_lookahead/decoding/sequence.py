"""One sequence on its way, and what of it is still to be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.base import Cache, Hidden

NO_DRAFT = Draft()

Tokens = npt.NDArray[np.int32]
"""int32 [n], token ids."""


@dataclass(slots=True, eq=False)
class DecodingSequence:
    """One sequence on its way. The loop owns ``last``, ``length``, ``finish`` and ``pages``.

    Attributes:
        index: its number, for the controller.
        prompt: int32 [n], n >= 1.
        limit: length, prompt included, at which the sequence ends; more than n, or n for a prompt that is only read.
        cache: a cache of its own; it may hold the prompt's first tokens, but not all of them. Of several sequences with
            one prompt and empty caches the first reads it, and the others get forks.
        proposer: None decodes token by token.
        choose: float32 [vocab_size] logits -> token, called once for each emitted position in order; None is the
            argmax, for which the engine need not hand out logits.
        accept: told each emitted token, in order; True ends the sequence with that token.
        limit_reason: what ``finish`` becomes at the limit.
        committed: gives the prompt and all emitted tokens, integers [n]; only a scheduler with a memory asks for them.
        on_prompt_logits: told the prompt's own logits as it is read: how many tokens are before them, and float32
            [rows, vocab_size]. The same rows may come twice, where the sequence is preempted meanwhile.
        last, length: the last committed token, and how many are committed.
        finish: None while it goes on, else "stop", ``limit_reason`` or "cancelled".
        pages: its pages, as the scheduler's memory numbers them.
        asked: whether its proposer was asked in this step.
        pending_outcomes: outcomes of steps since it was last asked, which it is told before it is asked again.
        missed: tokens of idle steps behind those.
        states: hidden states of what is read, for its proposer, chunk by chunk.
    """

    index: int
    prompt: Tokens
    limit: int
    cache: Cache
    proposer: Proposer | None
    choose: Callable[[npt.NDArray[np.float32]], int] | None
    accept: Callable[[int], bool]
    limit_reason: str = "length"
    committed: Callable[[], npt.NDArray[Any]] | None = None
    on_prompt_logits: Callable[[int, npt.NDArray[np.float32]], None] | None = None
    last: int = -1
    length: int = 0
    finish: str | None = None
    pages: list[int] = field(default_factory=list)
    asked: bool = False
    pending_outcomes: list[Outcome] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    states: list[Hidden] = field(default_factory=list)

    def outcomes(self) -> list[Outcome]:
        """What its proposer was not told so far; idle steps in a row are one outcome. It counts as told."""
        if self.missed:
            self.pending_outcomes.append(Outcome(NO_DRAFT, (), self.missed))
            self.missed = []
        found, self.pending_outcomes = self.pending_outcomes, []
        return found

    @property
    def shows_prompt(self) -> bool:
        """Whether each row of its prompt is computed for its logits, whatever is kept of it."""
        return self.on_prompt_logits is not None and self.length == 0


@dataclass(slots=True, eq=False)
class Reader:
    """Tokens that a sequence's cache is to hold before it decodes.

    Attributes:
        sequence: whose.
        tokens: all of them; those from ``cache.length`` on are to be read.
        answer: whether what follows the last of them is to be emitted; not where it has been, before the sequence was
            preempted.
        twins: sequences with the same prompt, which get forks of the cache.
    """

    sequence: DecodingSequence
    tokens: Tokens
    answer: bool
    twins: list[DecodingSequence] = field(default_factory=list)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Layers whose hidden states the proposers that are there already want."""
        proposers = [sequence.proposer for sequence in (self.sequence, *self.twins)]
        return tuple(sorted({layer for one in proposers if one is not None for layer in one.wants.hidden}))

    @property
    def left(self) -> int:
        """Tokens to be read."""
        return len(self.tokens) - self.sequence.cache.length
