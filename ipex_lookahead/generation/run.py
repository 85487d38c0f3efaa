"""A generation from end to end without torch or transformers: prompts and rules in, the loop, token ids out.

Hugging Face's words (:mod:`ipex_lookahead.generation.generate`) become jobs; a program that has token ids needs no more
than this.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.budget import Controller
from ipex_lookahead.decoding.choose import Choose, Ids, Logits, Processor
from ipex_lookahead.decoding.cost import EngineCosts
from ipex_lookahead.decoding.loop import stepwise
from ipex_lookahead.decoding.prefix_cache import PrefixCache, pages_of
from ipex_lookahead.decoding.sampling import Sampler
from ipex_lookahead.decoding.sequence import DecodingSequence
from ipex_lookahead.decoding.shared import SharedForwards
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import SECOND_MODEL, DraftModel, Proposer, make_proposer, make_second_model_proposer
from ipex_lookahead.drafting.store import Stores
from ipex_lookahead.engines.base import Cache, Engine
from ipex_lookahead.errors import ContextLengthError, InputError, arg
from ipex_lookahead.generation.lookahead import make_controller
from ipex_lookahead.generation.second_model import DraftKeys, SharedChoice

DEFAULT_NEW_TOKENS = 20
"""Hugging Face's default where neither ``max_new_tokens`` nor ``max_length`` is given."""

P = ParamSpec("P")
T = TypeVar("T")

MakeProposer = Callable[..., Proposer]
"""From the LookaheadConfig and, where that names a store, the store's ``suffixes``."""


@dataclass(slots=True, eq=False)
class Job:
    """One sequence to generate, and its rules.

    Attributes:
        prompt: int32 [n], n >= 1, ids below the vocabulary's size.
        limit: length, prompt included, at which it ends; more than n, at most the engine's ``max_context``. See
            :func:`length_limit`.
        limit_reason: the finish reason then: "length" or "context".
        eos_ids: a token of these ends the sequence.
        sampler: draws the tokens, by its own seed, sequence number and parameters; None takes the most likely.
        processors: change the logits before the choice, in order; called once for each emitted position, in order.
        draft_processors: those of them that may be asked about any prefix, for a draft model to choose as the target
            does: they keep no state.
        warpers: what the sampler stands for; only ``scores`` shows them.
        on_token: called with each token as it is emitted.
        stop: asked after each token, with the sequence so far; True ends it there.
        cache: an engine's, with the prompt's first tokens; None = an empty one. It is changed.
        scores, raw: lists that get the processed, and the raw logits of each position; None keeps none.
    """

    prompt: npt.NDArray[np.int32]
    limit: int
    limit_reason: str = "length"
    eos_ids: frozenset[int] = frozenset()
    sampler: Sampler | None = None
    processors: Sequence[Processor] = ()
    draft_processors: Sequence[Processor] = ()
    warpers: Sequence[Processor] = ()
    on_token: Callable[[int], None] | None = None
    stop: Callable[[Ids], bool] | None = None
    cache: Cache | None = None
    scores: list[Logits] | None = None
    raw: list[Logits] | None = None


class BatchRules(Protocol):
    """Rules that see all sequences of a batch at one position; its sequences then advance in lockstep.

    Attributes:
        processes: whether ``process`` does anything; where not, it is not called.
    """

    processes: bool

    def process(self, rows: Sequence[int], logits: Sequence[Logits]) -> Sequence[Logits]:
        """Raw logits of the jobs that go on, by number -> logits to choose from. It stands for their ``processors``."""
        ...

    def accept(self, rows: Sequence[int], tokens: Sequence[int]) -> Sequence[bool]:
        """The tokens that these jobs have emitted, after ``on_token`` and ``stop`` -> which of them end there."""
        ...


class TokenBuffer:
    """The tokens of one sequence, added one by one.

    Attributes:
        ids: int64 [limit]; the first ``length`` are committed.
        start: the prompt's length.
        length: how many are committed.
    """

    __slots__ = ("_eos", "_on_token", "_stop", "ids", "length", "start")

    def __init__(self, job: Job) -> None:
        self.ids = np.empty(job.limit, np.int64)
        self.start = self.length = len(job.prompt)
        self.ids[: self.start] = job.prompt
        self._eos = job.eos_ids
        self._on_token = job.on_token
        self._stop = job.stop

    @property
    def new(self) -> list[int]:
        """What was generated."""
        found: list[int] = self.ids[self.start : self.length].tolist()
        return found

    def prefix(self) -> Ids:
        """The committed tokens: a view, which later tokens do not change."""
        return self.ids[: self.length]

    def accept(self, token: int) -> bool:
        """Commit a token; True where the sequence ends with it."""
        self.ids[self.length] = token
        self.length += 1
        if self._on_token is not None:
            self._on_token(token)
        ended = token in self._eos
        if self._stop is not None:
            ended = self._stop(self.prefix()) or ended
        return ended


def end_to_end(name: str, stepwise: Callable[P, Generator[Any, None, T]], returns: str) -> Callable[P, T]:
    """A function of that name that runs a generator function to its end, and returns what it returns.

    Its signature and docstring are those of ``stepwise``, but for ``returns``, the annotation of what is returned.
    """

    @wraps(stepwise)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        steps = stepwise(*args, **kwargs)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: T = end.value
                return found

    whole.__signature__ = signature(stepwise).replace(return_annotation=returns)  # type: ignore[attr-defined]
    whole.__name__, whole.__qualname__ = name, stepwise.__qualname__.replace(stepwise.__name__, name)
    return whole


def streamed(steps: Generator[Sequence[TokenBuffer], None, Any]) -> Generator[int, None, None]:
    """The new tokens of a generation of one sequence, as they come; closing this abandons it."""
    yielded = 0
    try:
        for buffers in steps:
            if len(buffers) > 1:
                raise InputError(f"stream gives the tokens of one sequence, got {len(buffers)}; use generate")
            for buffer in buffers:
                new = buffer.ids[buffer.start + yielded : buffer.length].tolist()
                yielded += len(new)
                yield from new
    finally:
        steps.close()


def run_stepwise(
    engine: Engine,
    jobs: Sequence[Job],
    config: LookaheadConfig | None = None,
    *,
    stats: GenerationStats | None = None,
    costs: EngineCosts | None = None,
    stores: Stores | None = None,
    draft_engine: Engine | None = None,
    draft_memory: PrefixCache | None = None,
    make: MakeProposer = make_proposer,
    together: BatchRules | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    forwards: SharedForwards | None = None,
) -> Generator[list[TokenBuffer], None, list[TokenBuffer]]:
    """Generate several sequences in the same forwards, with the word given to the caller after each.

    Args:
        engine: where the model runs.
        jobs: one for each sequence.
        config: how to draft (:func:`ipex_lookahead.generation.lookahead.resolve_lookahead`); None decodes token by
            token. It never changes the output.
        stats: filled where given, also when an exception ends the generation.
        costs: what forwards cost on this engine; None learns it from this generation alone.
        stores: keeps the store of ``config.store`` open between generations; None opens it for this one.
        draft_engine: the second model, for the strategies ``draft_model`` and ``self_speculation``.
        draft_memory: keeps a draft model's keys and values for later generations; None: only for this one's sequences.
        make: makes the proposer of a sequence.
        together: rules for the whole batch, in lockstep.
        cancelled: asked between two pieces of the prompts and after each step; True ends all jobs ("cancelled").
        on_prefill: called after each piece of the prompts with the prompt tokens done, and their number in all.
        forwards: those of the model, shared with other threads' generations; None runs them alone.

    Yields:
        For each job its buffer, after each forward, and returns the same. Closing the generator abandons what goes on.
    """
    if costs is not None and any(job.limit - len(job.prompt) > 1 for job in jobs):
        costs.ready(config)
    stats = GenerationStats() if stats is None else stats
    stats.sequences = len(jobs)
    sampler = next((job.sampler for job in jobs if job.sampler is not None), None)
    if sampler is not None:
        stats.seed, stats.temperature = sampler.seed, sampler.temperature
    if config is not None:
        stats.strategy = config.strategy
    stores = Stores(engine.vocab_size) if stores is None else stores
    remembering = None if config is None else config.remembering
    store = None if remembering is None else stores.get(remembering)
    buffers = [TokenBuffer(job) for job in jobs]
    chooses = [choose_of(job, buffer, together) for job, buffer in zip(jobs, buffers, strict=True)]
    sequences = []
    for number, (job, buffer, choose) in enumerate(zip(jobs, buffers, chooses, strict=True)):
        cache = engine.new_cache() if job.cache is None else job.cache
        sequences.append(
            DecodingSequence(
                number, job.prompt, job.limit, cache, None, choose, buffer.accept, job.limit_reason, buffer.prefix
            )
        )

    if draft_memory is None and len(jobs) > 1:
        draft_memory = PrefixCache(sum(pages_of(job.limit) + 1 for job in jobs))
    seconds: list[DraftModel] = []

    def proposer_of() -> Proposer | None:
        if config is None:
            return None
        return make(config) if store is None else make(config, store.suffixes)

    if make is not make_proposer:  # a caller's own may want hidden states of the prompt
        for sequence in sequences:
            sequence.proposer = proposer_of()

    def begin(_: Sequence[DecodingSequence]) -> Controller:
        for job, sequence in zip(jobs, sequences, strict=True):
            if config is not None and draft_engine is not None and config.strategy in SECOND_MODEL:
                second = second_model(config, draft_engine, job, sequence.cache, draft_memory)
                seconds.append(second)
                sequence.proposer = second
            elif sequence.proposer is None:
                sequence.proposer = proposer_of()
        return make_controller(config, costs, in_step=together is not None)

    lockstep = None if together is None else _Lockstep(buffers, chooses, together)
    try:
        with nullcontext() if forwards is None else forwards.taking_part() as place:
            for _ in stepwise(
                engine,
                sequences,
                begin,
                stats,
                lockstep=lockstep,
                cancelled=cancelled,
                on_prefill=on_prefill,
                forward=None if place is None else place.forward,
            ):
                yield buffers
    finally:
        for second in seconds:
            second.end()
        for job, sequence in zip(jobs, sequences, strict=True):
            job.cache = sequence.cache
    if remembering is not None:
        stores.add(remembering, [buffer.new for buffer in buffers])
    return buffers


run = end_to_end("run", run_stepwise, "list[TokenBuffer]")
"""As :func:`run_stepwise`, from end to end: for each job its token buffer."""


def length_limit(
    prompt_length: int,
    max_context: int,
    *,
    max_new_tokens: int | None = None,
    max_length: int | None = None,
    padding: int = 0,
) -> tuple[int, str]:
    """The length at which a sequence ends, and why it ends there.

    Args:
        prompt_length: the prompt's tokens, without padding, as the length that is returned.
        max_context: the engine's.
        max_new_tokens: tokens after the prompt; goes before ``max_length``.
        max_length: columns of the caller's batch, padding included, as transformers counts; so that all rows get as
            many new tokens.
        padding: columns before the prompt.

    Raises:
        InputError: ``max_length`` leaves no room for a new token.
        ContextLengthError: nor does the model's context.
    """
    if max_new_tokens is not None:
        limit = prompt_length + max_new_tokens
    elif max_length is not None:
        limit = max_length - padding
        if limit <= prompt_length:
            columns = f"{prompt_length + padding} tokens" + (", padding included" if padding else "")
            raise InputError(
                f"max_length is {max_length} and the prompt alone has {columns}; raise max_length, or use"
                f" {arg('max_new_tokens')}, which does not count the prompt"
            )
    else:
        limit = prompt_length + DEFAULT_NEW_TOKENS
    if prompt_length > max_context or (prompt_length == max_context and limit > prompt_length):
        raise ContextLengthError(
            f"the prompt has {prompt_length} tokens and the model holds {max_context}, new tokens included;"
            f" shorten the prompt to at most {max_context - 1} tokens"
        )
    return (limit, "length") if limit <= max_context else (max_context, "context")


class _Lockstep:
    """The loop's lockstep: rules for the whole batch, then each job's own choice."""

    def __init__(self, buffers: Sequence[TokenBuffer], chooses: Sequence[Choose | None], params: BatchRules) -> None:
        self._tapes = buffers
        self._chooses = chooses
        self._rules = params

    def choose(self, sequences: Sequence[int], logits: Sequence[Logits]) -> list[int]:
        """See :class:`ipex_lookahead.decoding.group.Lockstep`."""
        chooses = [self._chooses[number] for number in sequences]
        for choose, raw in zip(chooses, logits, strict=True):
            if choose is not None:
                choose.record(raw)
        if self._rules.processes:
            logits = self._rules.process(sequences, logits)
        return [choose.pick(row) for choose, row in zip(chooses, logits, strict=True) if choose is not None]

    def accept(self, sequences: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """See :class:`ipex_lookahead.decoding.group.Lockstep`."""
        ended = [self._tapes[number].accept(token) for number, token in zip(sequences, tokens, strict=True)]
        also = self._rules.accept(sequences, tokens)
        return [bool(a or b) for a, b in zip(ended, also, strict=True)]


def second_model(
    config: LookaheadConfig, engine: Engine, job: Job, cache: Cache, memory: PrefixCache | None, key: str = ""
) -> DraftModel:
    """The proposer of a job, with the second model's ``engine``; ``cache`` is the target's.

    ``memory`` is that of the second model's own caches, and ``key`` says whose beginnings are found there; None: the
    cache is for this job alone. Whoever calls ends the proposer.
    """
    shared = SharedChoice(job.draft_processors, job.sampler) if job.draft_processors or job.sampler else None
    keys = None if memory is None else DraftKeys(engine, memory, key)
    return make_second_model_proposer(config, engine, cache, shared, job.eos_ids, keys)


def choose_of(job: Job, buffer: TokenBuffer, together: BatchRules | None = None) -> Choose | None:
    """How a job's tokens are chosen; None where the engine's argmax is all there is to it."""
    processed = bool(job.processors) or (together is not None and together.processes)
    if not (processed or job.sampler is not None or job.scores is not None or job.raw is not None):
        return None
    return Choose(buffer.prefix, job.processors, job.sampler, job.warpers, scores=job.scores, raw=job.raw)
