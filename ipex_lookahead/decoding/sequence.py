"""One sequence: its tokens, how the next one is chosen, where it ends, and what its proposer has not observed yet."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.sampling import Ids, Logits, Processor, Sampler, greedy
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import Cache, Checkpointed, Hidden, StepOutput
from ipex_lookahead.engines.prefill import TAIL
from ipex_lookahead.errors import EngineError

NO_DRAFT = Draft()
NOT_FINITE = "the engine's logits hold NaN: the weights or the activations are not finite"

Tokens = npt.NDArray[np.int32]
"""int32 [n], token ids."""


class Follower(Protocol):
    """A trained head that drafts; :class:`ipex_lookahead.drafting.heads.chain.Head` says more."""

    def follow(self, cache: Any) -> None:
        """Have a cache keep what the head needs, from now on."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt, what is wanted of it, and how far it is. Whoever submits it sets what is above ``ids``.

    Attributes:
        prompt: int32 [n], n >= 1, ids below the vocabulary's size.
        limit: length, prompt included, at which it ends; more than n (n for a prompt that is only read), at most the
            engine's ``max_context``. See :func:`~ipex_lookahead.runtime.run.length_limit`.
        limit_reason: the finish reason then: "length" or "context".
        eos_ids: a token of these ends the sequence.
        sampler: draws the tokens, by its own seed, sequence number and parameters; None takes the most likely.
        processors: change the logits before the choice, in order; called once for each emitted position, in order.
        draft_processors: those of them that may be called with any prefix, for a draft model to choose as the target
            does: they keep no state.
        warpers: what the sampler stands for; only ``scores`` shows them.
        on_token: called with each token as it is emitted.
        stop: called after each token, with the sequence so far; True ends it there.
        cache: an engine's, of its own, with the prompt's first tokens, but not all of them; the scheduler makes one
            where there is none. Of several sequences with one prompt and empty caches the first reads it, and the
            others get forks. None also while a preempted sequence waits, and after a failure in a shared memory.
        scores, raw: lists that get the processed, and the raw logits of each position; None keeps none.
        on_prompt_logits: called with the prompt's own logits as it is read: how many tokens are before them, and
            float32 [rows, vocab_size]. The same rows may come twice, where the sequence is preempted meanwhile.
        index: its number among those of its controller.
        proposer: None decodes token by token.
        ids: int64 [limit]; the first ``length`` are committed.
        length: how many are committed, the prompt's counted.
        last: the last of them.
        finish: None while it goes on, else "stop", ``limit_reason`` or "cancelled".
        needs_logits: whether tokens are chosen from logits; else the engine's argmax is all there is to it.
        to_read: what its cache is to hold before it decodes.
        twins: sequences with the same prompt, which get forks of the cache once it is read.
        turns: where the user's texts begin in the prompt, ascending: its state is kept at the first, which follows the
            system prompt, and at the last, so that another text from there on begins with it.
        cuts: lengths, ascending, at which its cache is kept while it reads: a chunk ends there.
        on_cut: called at each of these, the cache being that long.
        checkpoints: whether its cache, which is used again, is to go back to the end of its prompt.
        pages: its pages, as the scheduler's memory numbers them.
        head: the trained head that drafts for it, which its cache follows; None: none does.
        company: how many sequences decode in its steps, itself counted.
        proposed: whether its proposer was called in this step.
        pending_outcomes: outcomes of steps since it last was, which it observes before it is called again.
        missed: tokens of idle steps behind those.
        states: hidden states of what is read, for its proposer, chunk by chunk.
    """

    prompt: Tokens
    limit: int
    limit_reason: str = "length"
    eos_ids: frozenset[int] = frozenset()
    sampler: Sampler | None = None
    processors: abc.Sequence[Processor] = ()
    draft_processors: abc.Sequence[Processor] = ()
    warpers: abc.Sequence[Processor] = ()
    on_token: Callable[[int], None] | None = None
    stop: Callable[[Ids], bool] | None = None
    cache: Cache = None  # type: ignore[assignment]  # once it runs it has one
    scores: list[Logits] | None = None
    raw: list[Logits] | None = None
    on_prompt_logits: Callable[[int, Logits], None] | None = None
    index: int = 0
    proposer: Proposer | None = None
    ids: Ids = field(init=False)
    length: int = field(init=False)
    last: int = field(init=False)
    finish: str | None = None
    needs_logits: bool = False
    to_read: Tokens = field(init=False)
    twins: list[Sequence] = field(default_factory=list)
    turns: abc.Sequence[int] = ()
    cuts: list[int] = field(default_factory=list)
    on_cut: Callable[[Cache], None] | None = None
    checkpoints: bool = False
    pages: list[int] = field(default_factory=list)
    head: Follower | None = None
    company: int = 1
    proposed: bool = False
    pending_outcomes: list[Outcome] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    states: list[Hidden] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.to_read = self.prompt
        self.length = len(self.prompt)
        self.ids = np.empty(self.limit, np.int64)
        self.ids[: self.length] = self.prompt
        self.last = int(self.prompt[-1])

    # ---- tokens ------------------------------------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Whether nothing is generated yet."""
        return self.length == len(self.prompt)

    @property
    def new(self) -> list[int]:
        """What was generated."""
        found: list[int] = self.ids[len(self.prompt) : self.length].tolist()
        return found

    def prefix(self) -> Ids:
        """The committed tokens: a view, which later tokens do not change."""
        return self.ids[: self.length]

    def commit(self, token: int) -> bool:
        """Add a token; True where the sequence ends with it."""
        self.ids[self.length] = self.last = token
        self.length += 1
        if self.on_token is not None:
            self.on_token(token)
        ended = token in self.eos_ids
        if self.stop is not None:
            ended = self.stop(self.prefix()) or ended
        if ended:
            self.finish = "stop"
        elif self.length >= self.limit:
            self.finish = self.limit_reason
        return self.finish is not None

    # ---- choosing ----------------------------------------------------------------------------------------------------

    @property
    def chooses(self) -> bool:
        """Whether its own settings need logits."""
        return bool(self.processors) or any(one is not None for one in (self.sampler, self.scores, self.raw))

    def emit(
        self, argmax: list[int], output: StepOutput, stats: GenerationStats, first: int, row: int
    ) -> tuple[int, bool]:
        """Choose the token after row ``first + row``, commit it, and say whether the sequence ends with it."""
        if not self.needs_logits:
            token = argmax[first + row]
            if token < 0:
                raise EngineError(NOT_FINITE)
        else:
            began = perf_counter()
            assert output.logits is not None
            token = self.choose(output.logits[first + row])
            stats.sampler_seconds += perf_counter() - began
        stats.tokens += 1
        return token, self.commit(token)

    def choose(self, logits: Logits) -> int:
        """Raw logits, float32 [vocab_size], -> the next token; called once for each position, in order."""
        self.record(logits)
        prefix = self.prefix()
        for processor in self.processors:
            logits = processor(prefix, logits)
        return self.pick(logits)

    def record(self, logits: Logits) -> None:
        """Keep the raw logits where they are wanted."""
        if self.raw is not None:
            self.raw.append(logits.copy())

    def pick(self, logits: Logits) -> int:
        """The token, of logits that have been through the processors."""
        prefix = self.prefix()
        token = greedy(logits) if self.sampler is None else self.sampler(np.ascontiguousarray(logits), len(prefix))
        if self.scores is not None:
            logits = logits.copy()
            for warper in self.warpers:
                logits = warper(prefix, logits)
            self.scores.append(logits)
        return token

    # ---- its cache and its proposer ----------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Tokens that are still to be read."""
        return len(self.to_read) - self.cache.length

    @property
    def to_cut(self) -> int:
        """Tokens of them before the next of ``cuts``, or all."""
        at = self.cache.length
        return next((cut for cut in self.cuts if cut > at), len(self.to_read)) - at

    @property
    def at_cut(self) -> bool:
        """Whether it has read as far as one of ``cuts``."""
        return self.cache.length in self.cuts

    def cuts_at_turns(self, least: int) -> set[int]:
        """The first and the last of ``turns``, as far as keeping the state there saves ``least`` rows or more.

        Not the last rows of the text: states go back over these anyway.
        """
        ends = (*self.turns[:1], *self.turns[-1:])
        return {turn for turn in ends if self.cache.length + least <= turn < len(self.to_read) - TAIL}

    def cut_at(self, length: int) -> bool:
        """Have a chunk end there too, for others that begin so; False where that is read already."""
        if length < self.cache.length:
            return False
        if length < len(self.to_read) - TAIL and length not in self.cuts:
            self.cuts = sorted([*self.cuts, length])
        return True

    def drop_cache(self) -> None:
        """Release its memory while it does not run; the scheduler's next admission gives it another cache."""
        self.cache = None  # type: ignore[assignment]

    def checkpoint(self) -> None:
        """Have its cache go back to here, if it can and is to."""
        if self.checkpoints and isinstance(self.cache, Checkpointed):
            self.cache.checkpoint()

    @property
    def shows_prompt(self) -> bool:
        """Whether each row of its prompt is computed for its logits, whatever is kept of it."""
        return self.on_prompt_logits is not None and self.fresh

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose hidden states of the prompt its proposer, or a twin's, wants."""
        proposers = [sequence.proposer for sequence in (self, *self.twins)]
        return tuple(sorted({layer for one in proposers if one is not None for layer in one.wants.hidden}))

    def plan_reading(self) -> Tokens:
        """Set ``to_read`` to the prompt, or after it was preempted to all but the last committed token."""
        self.to_read = self.prompt if self.fresh else self.ids[: self.length - 1].astype(np.int32)
        return self.to_read

    def outcomes(self) -> list[Outcome]:
        """What its proposer has not observed so far; idle steps in a row are one outcome. It counts as observed."""
        if self.missed:
            self.pending_outcomes.append(Outcome(NO_DRAFT, (), self.missed))
            self.missed = []
        found, self.pending_outcomes = self.pending_outcomes, []
        return found
