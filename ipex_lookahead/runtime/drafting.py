"""How one request drafts: the one place where proposers, trained heads, second models, stores and controllers start."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from typing import Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import AdaptiveController, Controller
from ipex_lookahead.controller.adaptive import should_attach_head
from ipex_lookahead.controller.cost import CostCurve, EngineCosts
from ipex_lookahead.controller.kept import HeadRates, rates_of
from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.drafting import (
    HEADS,
    SECOND_MODEL,
    DraftModel,
    Proposer,
    make_proposer,
    make_second_model_proposer,
)
from ipex_lookahead.drafting.heads.chain import HeadChain
from ipex_lookahead.drafting.heads.joined import MAX_CHAIN, HeadAndFree
from ipex_lookahead.drafting.prediction import Prediction
from ipex_lookahead.drafting.store import Store
from ipex_lookahead.engines.api import Engine, HasHead
from ipex_lookahead.errors import InputError, arg
from ipex_lookahead.runtime.lookahead import AUTO_TOKENS, make_controller
from ipex_lookahead.runtime.second_model import shared_choice


class Drafting:
    """The drafts of one request, from its start to its end.

    ``prepare`` comes before the prompts are read, ``begin`` once they are read (again after each preemption), and
    ``end`` last.

    Args:
        engine: the target's engine.
        config: how to draft; None drafts only from ``prediction``.
        costs: measured costs of the engine's forwards; None learns them from this request.
        second_engine: engine of the second model, for a strategy of ``SECOND_MODEL``.
        prefixes: prefix cache of the second model's KV caches; None: KV caches for this request alone.
        key: tenant of that prefix cache.
        own: makes the caller's own proposer from the config; it takes the place of the strategy's.
        prediction: token ids that the answer may resemble: one more source of drafts.
        adaptive: whether a request that drafts only from ``prediction`` has an adaptive budget.
        controller: returns the controller for a config; None: a new controller for this request.
    """

    def __init__(
        self,
        engine: Engine,
        config: LookaheadConfig | None = None,
        *,
        costs: EngineCosts | None = None,
        second_engine: Engine | None = None,
        prefixes: PrefixCache | None = None,
        key: str = "",
        own: Callable[[LookaheadConfig], Proposer] | None = None,
        prediction: abc.Sequence[int] = (),
        adaptive: bool = True,
        controller: Callable[[LookaheadConfig | None], Controller] | None = None,
    ) -> None:
        self.config = config
        self._engine = engine
        self._costs = costs
        self._second_engine = second_engine
        self._prefixes, self._key = prefixes, key
        self._own = own
        self._prediction, self._adaptive = prediction, adaptive
        self._make_controller = controller or (lambda config: make_controller(config, costs, head_rates(engine, costs)))
        self._store: Store | None = None
        self._seconds: list[DraftModel] = []

    def prepare(self, sequences: abc.Sequence[Sequence], store: Store | None = None) -> None:
        """Attach the trained head, and proposers of the caller's own, which may want hidden states of the prompt.

        Args:
            sequences: changed.
            store: the open store of earlier answers, for the strategies that draft from it.
        """
        self._store = store
        if self._prefixes is not None and self.config is not None and self.config.strategy in SECOND_MODEL:
            for sequence in sequences:
                self._prefixes.fetch(sequence.prompt, self._key)
        head = None if self._own is not None else self._head_of_request()
        for sequence in sequences:
            sequence.head = head
            if self._own is not None and self.config is not None:
                sequence.proposer = self._own(self.config)

    def begin(self, group: SequenceGroup) -> Controller:
        """Give the live sequences of a group their proposers, and return the controller."""
        self._end_second_models()
        config = self.config
        if config is None and self._prediction:
            config = LookaheadConfig(num_draft_tokens=AUTO_TOKENS, adaptive=self._adaptive)
        controller = self._make_controller(config)
        for sequence in group.live if self._own is None else ():
            sequence.proposer = self._proposer(sequence, controller)
        return controller

    def end(self, sequences: abc.Sequence[Sequence]) -> None:
        """Release the proposers; second models store their KV caches for later requests."""
        try:
            self._end_second_models()
        finally:
            for sequence in sequences:
                # A proposer may refer to its sequence, and a cycle would hold the KV cache until the next collection.
                sequence.proposer = None

    def _end_second_models(self) -> None:
        while self._seconds:
            self._seconds.pop().end()

    def _proposer(self, sequence: Sequence, controller: Controller) -> Proposer | None:
        proposer = None if self.config is None else self._from_strategy(self.config, sequence, controller)
        return Prediction(self._prediction, proposer) if self._prediction else proposer

    def _from_strategy(self, config: LookaheadConfig, sequence: Sequence, controller: Controller) -> Proposer:
        chooses = sequence.draft_processors or sequence.sampler
        shared = shared_choice(sequence.draft_processors, sequence.sampler) if chooses else None
        if config.strategy in SECOND_MODEL and self._second_engine is not None:
            second = make_second_model_proposer(
                config,
                self._second_engine,
                sequence.cache,
                shared,
                sequence.eos_ids,
                self._prefixes,
                self._key,
                sequence.images,
            )
            self._seconds.append(second)
            return second
        free = None
        if config.strategy not in HEADS:
            free = make_proposer(config, None if self._store is None else self._store.suffixes)
            if sequence.head is None:
                return free
        sampler = sequence.sampler
        chain = HeadChain(
            _head(self._engine),
            lambda: sequence.cache,
            shared if sequence.draft_processors else None,
            None if sampler is None else sampler.draw,
            min_prob=0.0 if free is not None else config.draft_min_prob,
            end_tokens=sequence.eos_ids,
        )
        if free is None and not config.adaptive:
            return chain
        return HeadAndFree(free, chain, controller.plan if isinstance(controller, AdaptiveController) else None)

    def _head_of_request(self) -> Any:
        """Return the model's head if it should draft for this request; called once per request.

        Under "auto" a head that does not pay is tried with few requests.
        """
        config, head = self.config, _head(self._engine)
        if config is None or head is None or config.strategy not in ("auto", *HEADS):
            return None
        if config.strategy == "auto" and config.adaptive:
            rates = rates_of(self._engine, None if self._costs is None else self._costs.folder)
            curve = CostCurve() if self._costs is None else self._costs.curve()
            if not should_attach_head(rates, rates.tests, rates.skipped, curve, MAX_CHAIN):
                rates.skipped += 1
                return None
            rates.skipped = 0
        return head


def head_rates(engine: Engine, costs: EngineCosts | None) -> HeadRates | None:
    """Return the rates of the engine's head, which all generations share; None where it has no head."""
    if _head(engine) is None:
        return None
    return rates_of(engine, None if costs is None else costs.folder)


def check_head(config: LookaheadConfig | None, engine: Engine) -> None:
    """Raise InputError where the config names the model's head and the model has none."""
    if config is not None and config.strategy in HEADS and _head(engine) is None:
        raise InputError(
            f"strategy {config.strategy!r} needs a draft head, on the engine native or opencl: the model's own (MTP) or"
            f" a {arg('drafter')}",
            hint=f"{arg('lookahead', 'auto')} drafts without a head",
        )


def _head(engine: Engine) -> Any:
    return engine.head if isinstance(engine, HasHead) else None
