"""One sequence: its tokens, how the next is chosen, where it ends, and outcomes that its proposer has yet to see."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.prefix_cache import PAGE, PrefixCache
from ipex_lookahead.decoding.sampling import Ids, Logits, Processor, Sampler, greedy
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import AppliedAdapter, Cache, Checkpointed, Hidden, StepOutput
from ipex_lookahead.engines.images import ImageRows, row_keys
from ipex_lookahead.engines.prefill import TAIL
from ipex_lookahead.errors import EngineError

Force = Callable[[Ids], int]
"""Tokens so far -> the token that must come next, -1 where the model chooses. Called once per position, in order."""
DraftFilter = Callable[[Ids, Draft], Draft]
"""(tokens so far, draft of the next tokens without scratch rows) -> the part of the draft that may follow, a tree."""

NO_DRAFT = Draft()
NOT_FINITE = "the engine's logits hold NaN: the weights or the activations are not finite"

Tokens = npt.NDArray[np.int32]
"""int32 [n], token ids."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt, its settings and its progress. The caller sets the attributes before ``ids``.

    Attributes:
        prompt: int32 [n], n >= 1, ids below the vocabulary's size.
        limit: length, prompt included, at which it ends; above n (n for a prompt that is only read), at most the
            engine's ``max_context``. See :func:`~ipex_lookahead.runtime.run.length_limit`.
        limit_reason: the finish reason then: "length" or "context".
        eos_ids: end tokens.
        sampler: draws the tokens; None takes the most likely.
        processors: change the logits before the choice, in order; called once for each emitted position, in order.
        draft_processors: those of them without state, which a draft model calls with any prefix to choose as the
            target does.
        warpers: processors that the sampler replaces; only ``scores`` shows them.
        draft_filter: cuts each draft to what may follow, before it costs a row.
        force: chooses some tokens instead of the model, as a function of the tokens before; None: never.
        on_token: called with each token as it is emitted.
        stop: called after each token, with the sequence so far; True ends it there.
        cache: its KV cache, with a proper prefix of the prompt; None: the scheduler makes one. Of several sequences
            with one prompt and empty caches the first reads it, and the others get forks. None also while a preempted
            sequence waits, and after a failure with a prefix cache.
        scores, raw: lists for the processed and the raw logits of each position; None stores none.
        on_prompt_logits: called with the prompt's own logits while it is read: the position of the first row, and
            float32 [rows, vocab_size]. Rows may come twice, if the sequence is preempted.
        index: its number among those of its controller.
        adapter: the low-rank adapter of its rows, loaded into the engine; None: the base model.
        proposer: None decodes token by token.
        ids: int64 [limit]; the first ``length`` are committed.
        length: number of committed tokens, prompt included.
        last: the last of them.
        finish: None while it goes on, else "stop", ``limit_reason`` or "cancelled".
        needs_logits: whether tokens are chosen from logits, not by the engine's argmax.
        to_read: tokens that its cache must hold before it decodes.
        twins: sequences with the same prompt, which get forks of its cache.
        turns: positions in the prompt where the user's messages begin, ascending; see ``plan_cuts``.
        cuts: lengths, ascending, at which its cache is stored while it reads: a chunk ends there.
        checkpoints: whether its cache is used again and must be able to roll back to the end of its prompt.
        pages: numbers of its pages in the prefix cache.
        head: the trained head that drafts for it (:class:`ipex_lookahead.drafting.heads.chain.Head`), for which its
            cache keeps features; None: no head drafts.
        proposed: whether its proposer was called in this step.
        pending_outcomes: outcomes of steps since it last was, which it observes before it is called again.
        missed: tokens of idle steps behind those.
        states: hidden states of what is read, for its proposer, chunk by chunk.
        images: the images in its prompt, set by ``attach_images``; None: there are none.
        keys: int64 [limit], ``ids`` by which caches find it: rows of images have the keys of their content.
    """

    prompt: Tokens
    limit: int
    limit_reason: str = "length"
    eos_ids: frozenset[int] = frozenset()
    sampler: Sampler | None = None
    processors: abc.Sequence[Processor] = ()
    draft_processors: abc.Sequence[Processor] = ()
    warpers: abc.Sequence[Processor] = ()
    draft_filter: DraftFilter | None = None
    force: Force | None = None
    on_token: Callable[[int], None] | None = None
    stop: Callable[[Ids], bool] | None = None
    cache: Cache = None  # type: ignore[assignment]  # once it runs it has one
    scores: list[Logits] | None = None
    raw: list[Logits] | None = None
    on_prompt_logits: Callable[[int, Logits], None] | None = None
    index: int = 0
    adapter: AppliedAdapter | None = None
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
    checkpoints: bool = False
    pages: list[int] = field(default_factory=list)
    head: Any = None
    proposed: bool = False
    pending_outcomes: list[Outcome] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    states: list[Hidden] = field(default_factory=list)
    images: ImageRows | None = field(init=False, default=None)
    keys: Ids = field(init=False)

    def __post_init__(self) -> None:
        self.to_read = self.prompt
        self.length = len(self.prompt)
        self.ids = np.empty(self.limit, np.int64)
        self.ids[: self.length] = self.prompt
        self.last = int(self.prompt[-1])
        self.keys = self.ids

    def attach_images(self, images: ImageRows) -> None:
        """Set the images of a new sequence's prompt; see :func:`~ipex_lookahead.engines.images.check_images`."""
        self.images = images
        self.keys = np.empty(self.limit, np.int64)
        self.keys[: self.length] = row_keys(self.prompt, images.images)

    def fitted(self, rows: int) -> int:
        """Return the number of rows of a chunk that ends outside of spans: more than ``rows`` if it begins at one.

        The chunk ends before an image that is not encoded yet; 0: it would begin with such an image.
        """
        if self.images is None or rows <= 0:
            return rows
        rows = min(rows, self.images.encoded(self.cache.length))
        return self.images.fitted(self.cache.length, rows) if rows else 0

    # ---- tokens ------------------------------------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Whether no token is generated yet."""
        return self.length == len(self.prompt)

    @property
    def new(self) -> list[int]:
        """The generated tokens."""
        found: list[int] = self.ids[len(self.prompt) : self.length].tolist()
        return found

    def prefix(self) -> Ids:
        """Return the committed tokens, a view that later tokens do not change."""
        return self.ids[: self.length]

    def commit(self, token: int) -> bool:
        """Append a token; return True if the sequence ends with it."""
        self.ids[self.length] = self.keys[self.length] = self.last = token
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
        """Choose and commit the token after row ``first + row``; return it, and True if the sequence ends with it."""
        forced = -1 if self.force is None else self.force(self.prefix())
        if not self.needs_logits:
            token = argmax[first + row]
            if token < 0:
                raise EngineError(NOT_FINITE)
        else:
            began = perf_counter()
            assert output.logits is not None
            token = self.choose(output.logits[first + row])
            stats.sampler_seconds += perf_counter() - began
        if forced >= 0:
            token = forced
        stats.tokens += 1
        return token, self.commit(token)

    def choose(self, logits: Logits) -> int:
        """Choose the next token from raw logits, float32 [vocab_size]; called once per position, in order."""
        self.record(logits)
        prefix = self.prefix()
        for processor in self.processors:
            logits = processor(prefix, logits)
        return self.pick(logits)

    def record(self, logits: Logits) -> None:
        """Store the raw logits where requested."""
        if self.raw is not None:
            self.raw.append(logits.copy())

    def pick(self, logits: Logits) -> int:
        """Choose the token from processed logits."""
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
        """Number of tokens that are still to be read."""
        return len(self.to_read) - self.cache.length

    @property
    def to_cut(self) -> int:
        """Number of tokens before the next of ``cuts``, or before the end."""
        at = self.cache.length
        return next((cut for cut in self.cuts if cut > at), len(self.to_read)) - at

    @property
    def at_cut(self) -> bool:
        """Whether its cache has the length of one of ``cuts``."""
        return self.cache.length in self.cuts

    def plan_cuts(self, memory: PrefixCache, key: str) -> None:
        """Set ``cuts``, for a cache with recurrent states.

        They are every ``apart`` positions, the end of the prefix shared with a stored text, and the first and the last
        turn, where another conversation with the same system prompt, and another last turn, begin. A cut saves at least
        a page of rows, and none is among the last rows of the text, over which states roll back anyway.
        """
        held, apart, end = self.cache.length, memory.apart, len(self.to_read) - TAIL
        ends = (*self.turns[:1], *self.turns[-1:], memory.parts(self.read_keys, key))
        every = range((held // apart + 1) * apart, end, apart)
        self.cuts = sorted({*every, *(length for length in ends if held + PAGE <= length < end)})

    def cut_at(self, length: int) -> bool:
        """Add a cut for others that share the prefix; return False where its cache is longer already."""
        if length < self.cache.length:
            return False
        if length < len(self.to_read) - TAIL and length not in self.cuts:
            self.cuts = sorted([*self.cuts, length])
        return True

    def drop_cache(self) -> None:
        """Release the KV cache; the next admission gives the sequence another one."""
        self.cache = None  # type: ignore[assignment]

    def checkpoint(self) -> None:
        """Let the cache roll back to its present length, if it is used again and has states."""
        if self.checkpoints and isinstance(self.cache, Checkpointed):
            self.cache.checkpoint()

    @property
    def shows_prompt(self) -> bool:
        """Whether every row of its prompt is computed for its logits, also on a prefix cache hit."""
        return self.on_prompt_logits is not None and self.fresh

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers of which its proposer, or a twin's, wants the hidden states of the prompt."""
        proposers = [sequence.proposer for sequence in (self, *self.twins)]
        return tuple(sorted({layer for one in proposers if one is not None for layer in one.wants.hidden}))

    def plan_reading(self) -> Tokens:
        """Set ``to_read`` to the prompt, or after a preemption to all but the last committed token."""
        self.to_read = self.prompt if self.fresh else self.ids[: self.length - 1].astype(np.int32)
        return self.to_read

    @property
    def read_keys(self) -> Ids:
        """The keys of ``to_read``."""
        return self.keys[: len(self.to_read)]

    def outcomes(self) -> list[Outcome]:
        """Return and clear outcomes that its proposer has yet to observe; consecutive idle steps are one outcome."""
        if self.missed:
            self.pending_outcomes.append(Outcome(NO_DRAFT, (), self.missed))
            self.missed = []
        found, self.pending_outcomes = self.pending_outcomes, []
        return found
