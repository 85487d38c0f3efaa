"""A generation from end to end without torch or transformers: prompts and rules in, the loop, token ids out.

Hugging Face's words (:mod:`ipex_lookahead.hf.generation.generate`) become sequences; a program that has token ids needs
no more than this.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import Controller
from ipex_lookahead.controller.cost import CostCurve, EngineCosts
from ipex_lookahead.controller.kept_records import record_of
from ipex_lookahead.decoding.loop import decode
from ipex_lookahead.decoding.prefix_cache import PrefixCache, memory_for
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.sequence_group import BatchCallbacks, SequenceGroup
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import (
    HEADS,
    SECOND_MODEL,
    DraftModel,
    Proposer,
    make_proposer,
    make_second_model_proposer,
)
from ipex_lookahead.drafting.heads.chain import HeadChain
from ipex_lookahead.drafting.heads.choosing import Choosing, should_attach_head
from ipex_lookahead.drafting.heads.price import price_of
from ipex_lookahead.drafting.store import Stores
from ipex_lookahead.engines.api import Engine, HasHead
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.errors import ContextLengthError, InputError, arg
from ipex_lookahead.runtime.lookahead import make_controller
from ipex_lookahead.runtime.second_model import DraftKeys, SharedChoice

DEFAULT_NEW_TOKENS = 20
"""Hugging Face's default where neither ``max_new_tokens`` nor ``max_length`` is given."""

P = ParamSpec("P")
T = TypeVar("T")

MakeProposer = Callable[..., Proposer]
"""From the LookaheadConfig and, where that names a store, the store's ``suffixes``."""


@dataclass(slots=True)
class RunOptions:
    """How sequences are generated. None of it changes what comes out, but ``callbacks`` and ``cancelled``.

    Attributes:
        config: how to draft (:func:`ipex_lookahead.runtime.lookahead.resolve_lookahead`); None decodes token by
            token.
        stats: filled, also when an exception ends the generation.
        costs: what forwards cost on this engine; None learns it from this generation alone.
        stores: keeps the store of ``config.store`` open between generations; None opens it for this one.
        draft_engine: the second model, for the strategies ``draft_model`` and ``self_speculation``.
        draft_memory: keeps a draft model's keys and values for later generations; None: only for this one's sequences.
        make: makes the proposer of a sequence.
        callbacks: the caller's, for all sequences at once; such a batch decodes without drafts.
        cancelled: called between two chunks of the prompts and after each step; True ends all sequences ("cancelled").
        on_prefill: called after each chunk of the prompts with the prompt tokens done, and their number in all.
        turn: the model's lock, held during each forward: threads that generate take turns.
        prefill_rows: most prompt rows in a forward.
    """

    config: LookaheadConfig | None = None
    stats: GenerationStats = field(default_factory=GenerationStats)
    costs: EngineCosts | None = None
    stores: Stores | None = None
    draft_engine: Engine | None = None
    draft_memory: PrefixCache | None = None
    make: MakeProposer = make_proposer
    callbacks: BatchCallbacks | None = None
    cancelled: Callable[[], bool] | None = None
    on_prefill: Callable[[int, int], None] | None = None
    turn: AbstractContextManager[Any] | None = None
    prefill_rows: int = PREFILL_ROWS


def to_the_end(returns: str) -> Callable[[Callable[P, Generator[Any, None, T]]], Callable[P, T]]:
    """Decorate a generator function: calling it runs the generator to its end and returns its return value.

    The generator function remains available as ``inspect.unwrap(function)``.

    Args:
        returns: annotation of the return value, for the signature.
    """

    def decorated(stepwise: Callable[P, Generator[Any, None, T]]) -> Callable[P, T]:
        @wraps(stepwise)
        def whole(*args: P.args, **kwargs: P.kwargs) -> T:
            steps = stepwise(*args, **kwargs)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    value: T = end.value
                    return value

        whole.__signature__ = signature(stepwise).replace(return_annotation=returns)  # type: ignore[attr-defined]
        return whole

    return decorated


def streamed(steps: Generator[abc.Sequence[Sequence], None, Any]) -> Generator[int, None, None]:
    """The new tokens of a generation of one sequence, as they come; closing this abandons it."""
    yielded = 0
    try:
        for sequences in steps:
            if len(sequences) > 1:
                raise InputError(f"stream gives the tokens of one sequence, got {len(sequences)}; use generate")
            for sequence in sequences:
                new = sequence.new[yielded:]
                yielded += len(new)
                yield from new
    finally:
        steps.close()


def run_stepwise(
    engine: Engine, sequences: abc.Sequence[Sequence], options: RunOptions
) -> Generator[abc.Sequence[Sequence], None, abc.Sequence[Sequence]]:
    """Generate several sequences in the same forwards, with control given to the caller after each.

    Yields:
        The sequences, after each forward, and returns them. Closing the generator abandons what goes on.
    """
    costs, stats = options.costs, options.stats
    config = options.config if options.callbacks is None else None
    if costs is not None and any(sequence.limit - len(sequence.prompt) > 1 for sequence in sequences):
        costs.ready(config)
    stats.sequences = len(sequences)
    sampler = next((sequence.sampler for sequence in sequences if sequence.sampler is not None), None)
    if sampler is not None:
        stats.seed, stats.temperature = sampler.seed, sampler.temperature
    if config is not None:
        stats.strategy = config.strategy
    stores = Stores(engine.vocab_size) if options.stores is None else options.stores
    remembering = None if config is None else config.remembering
    store = None if remembering is None else stores.get(remembering)
    for number, sequence in enumerate(sequences):
        sequence.index = number
    draft_memory = options.draft_memory
    if draft_memory is None and options.draft_engine is not None and len(sequences) > 1:
        draft_memory = memory_for(options.draft_engine, [sequence.limit for sequence in sequences])
    seconds: list[DraftModel] = []

    own = options.make is not make_proposer
    check_head(options.config, engine)
    head = None if own else head_of(config, engine, costs)

    def proposer_of(sequence: Sequence) -> Proposer | None:
        if config is None:
            return None
        alone = config.strategy in HEADS
        free = None if alone else options.make(config, *() if store is None else (store.suffixes,))
        return free if head is None else with_head(config, free, engine, sequence, costs)

    for sequence in sequences:
        sequence.head = head
        if own:  # which may want hidden states of the prompt too
            sequence.proposer = proposer_of(sequence)

    def begin(_: SequenceGroup) -> Controller:
        for sequence in sequences:
            if config is not None and options.draft_engine is not None and config.strategy in SECOND_MODEL:
                second = second_model(config, options.draft_engine, sequence, draft_memory)
                seconds.append(second)
                sequence.proposer = second
            elif sequence.proposer is None:
                sequence.proposer = proposer_of(sequence)
        return make_controller(config, costs)

    group = SequenceGroup(sequences, stats, begin, callbacks=options.callbacks, on_prefill=options.on_prefill)
    try:
        for _ in decode(
            engine, group, cancelled=options.cancelled, prefill_rows=options.prefill_rows, turn=options.turn
        ):
            yield sequences
    finally:
        for second in seconds:
            second.end()
        for sequence in sequences:  # a proposer may refer to it: as a circle both would hold keys until Python looks
            sequence.proposer = None
    if remembering is not None:
        stores.add(remembering, [sequence.new for sequence in sequences])
        if options.stores is None:
            stores.close()
    return sequences


run = to_the_end("abc.Sequence[Sequence]")(run_stepwise)
"""As :func:`run_stepwise`, from end to end."""


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


def shared_choice(sequence: Sequence) -> SharedChoice | None:
    """How a sequence's drafters choose, as the target does; None: they take the most likely."""
    chooses = sequence.draft_processors or sequence.sampler
    return SharedChoice(sequence.draft_processors, sequence.sampler) if chooses else None


def check_head(config: LookaheadConfig | None, engine: Engine) -> None:
    """Raise InputError where the configuration names the model's head, and there is none."""
    if config is not None and config.strategy in HEADS and _head(engine) is None:
        raise InputError(
            f"strategy {config.strategy!r} needs a model with a trained head on the native engine, its own (MTP) or a"
            f" {arg('drafter')}, and this one has none",
            hint=f"{arg('lookahead', 'auto')} drafts without",
        )


def head_of(config: LookaheadConfig | None, engine: Engine, costs: EngineCosts | None) -> Any:
    """The model's head where it is to draft for a sequence, which is asked once; None: it is not, or there is none.

    Under "auto" a head that does not pay is tried with few sequences, and reads no others.
    """
    head = _head(engine)
    if config is None or head is None or config.strategy not in ("auto", *HEADS):
        return None
    if config.strategy == "auto" and config.adaptive:
        record = record_of(engine, None if costs is None else costs.folder)
        return head if should_attach_head(record, price_of(engine), _curve(costs)) else None
    return head


def with_head(
    config: LookaheadConfig, free: Proposer | None, engine: Engine, sequence: Sequence, costs: EngineCosts | None
) -> Proposer:
    """The proposer of a sequence that has a ``head``: beside the free sources, under one price, or alone."""
    sampler, choose = sequence.sampler, shared_choice(sequence) if sequence.draft_processors else None
    chain = HeadChain(
        _head(engine),
        record_of(engine, None if costs is None else costs.folder),
        lambda: sequence.cache,
        choose,
        None if sampler is None else sampler.draw,
        min_prob=0.0 if free is not None else config.draft_min_prob,
        end_tokens=sequence.eos_ids,
    )
    if free is None and not config.adaptive:
        return chain
    curve = _curve(costs)
    return Choosing(free, chain, price_of(engine), lambda rows: curve(rows, sequence.length), lambda: sequence.company)


def _head(engine: Engine) -> Any:
    return engine.head if isinstance(engine, HasHead) else None


def _curve(costs: EngineCosts | None) -> CostCurve:
    return CostCurve() if costs is None else costs.curve()


def second_model(
    config: LookaheadConfig, engine: Engine, sequence: Sequence, memory: PrefixCache | None, key: str = ""
) -> DraftModel:
    """The proposer of a sequence, with the second model's ``engine``.

    ``memory`` is that of the second model's own caches, and ``key`` says whose beginnings are found there; None: the
    cache is for this sequence alone. Whoever calls ends the proposer.
    """
    shared = shared_choice(sequence)
    keys = None if memory is None else DraftKeys(engine, memory, key)
    return make_second_model_proposer(config, engine, sequence.cache, shared, sequence.eos_ids, keys)
