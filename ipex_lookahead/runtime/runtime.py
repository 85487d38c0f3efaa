"""One engine at work: what all generations on it share, and how sequences are generated from end to end.

``TextModel``, ``LookaheadModelForCausalLM`` and ``Service`` run on this. It imports neither torch nor transformers.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import abc
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller.cost import EngineCosts
from ipex_lookahead.controller.kept import cost_folder
from ipex_lookahead.decoding.cache_budget import conversation_memory, memory_for
from ipex_lookahead.decoding.loop import decode
from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import SECOND_MODEL, make_proposer
from ipex_lookahead.drafting.store import Stores
from ipex_lookahead.engines.adapters import Adapters
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.low_bit_copy import low_bit_copy
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.cache_files import CacheFiles, write_all
from ipex_lookahead.runtime.drafting import Drafting, check_head
from ipex_lookahead.runtime.lookahead import resolve_lookahead, second_model_lookahead
from ipex_lookahead.runtime.request import store_of

log = logging.getLogger("ipex_lookahead")


class Runtime:
    """An engine, and what its generations share.

    Args:
        engine: the model's engine.
        costs: measured costs of its forwards; None: every generation learns them for itself.
        stores: the stores of earlier answers; None: a new object, without the tokenizer's vocabulary.

    Attributes:
        engine, costs, stores: as given.
        adapters: the low-rank adapters of the model, by name.
        turn: lock that is held during each forward: threads that generate take turns.
        draft_engine: the draft model's engine, or None.
        copy: the low-bit copy of the engine that drafts for it, once it is made.
        prefill_rows: largest number of prompt rows in a forward.
    """

    def __init__(self, engine: Engine, costs: EngineCosts | None = None, stores: Stores | None = None) -> None:
        self.stores = Stores(engine.vocab_size) if stores is None else stores
        self.draft_engine: Engine | None = None
        self.prefill_rows = PREFILL_ROWS
        self._last = threading.local()
        self._making_copy = threading.Lock()
        self._cache_files: tuple[CacheFiles, Path | None] | None = None
        self._prefixes: PrefixCache | None = None
        self._using_prefixes = threading.Lock()
        self.adapters = Adapters(engine)
        self.move_to(engine, costs)

    @classmethod
    def measured(
        cls,
        engine: Engine,
        vocabulary: Callable[[], Mapping[str, int]] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Runtime:
        """Return a runtime that measures the engine's costs once and stores them on this machine.

        Args:
            engine: the model's engine.
            vocabulary: returns the tokenizer's tokens and ids; files of stores are bound to it.
            note: called with a message while costs are measured.
        """
        return cls(engine, EngineCosts(engine, cost_folder(), note), Stores(engine.vocab_size, vocabulary))

    def move_to(self, engine: Engine, costs: EngineCosts | None) -> None:
        """Run later generations on another engine, with the same adapters.

        Raises UnsupportedModelError if there are adapters and the engine takes none.
        """
        adapters = Adapters(engine)
        adapters.base = self.adapters.base
        for adapter in self.adapters.values():
            adapters.load(adapter)
        self.engine, self.costs, self.adapters = engine, costs, adapters
        self.turn = threading.Lock()
        self.copy: Engine | None = None
        if self._cache_files is not None:
            try:
                self.use_cache_files(*self._cache_files)
            except InputError as error:
                log.warning("prefixes are not read from disk any more: %s", error)
                self._prefixes = None

    def use_cache_files(self, files: CacheFiles, source: Path | None) -> None:
        """Give generations of one prompt a prefix cache with a folder; see :meth:`prefixes`.

        Args:
            files: the folder.
            source: the folder or GGUF file that the engine was loaded from, or None.

        Raises InputError for an engine that cannot save KV caches.
        """
        write_all([self._prefixes])
        files.add(self.engine, source)
        self._cache_files, self._prefixes = (files, source), conversation_memory(self.engine)
        files.attach(self._prefixes, self.engine)
        weakref.finalize(self, write_all, [self._prefixes])  # also at the end of the process

    @contextmanager
    def prefixes(self, *, wanted: bool) -> Iterator[PrefixCache | None]:
        """Yield the prefix cache for one generation; None if there is none, or another thread uses it."""
        memory = self._prefixes if wanted else None
        if memory is None or not self._using_prefixes.acquire(blocking=False):
            yield None
            return
        try:
            yield memory
        finally:
            self._using_prefixes.release()

    @property
    def stats(self) -> GenerationStats:
        """Statistics of the calling thread's last generation; empty before the first."""
        found: GenerationStats = getattr(self._last, "stats", None) or GenerationStats()
        return found

    @stats.setter
    def stats(self, stats: GenerationStats) -> None:
        self._last.stats = stats

    # ---- drafting ----------------------------------------------------------------------------------------------------

    def resolve(
        self,
        lookahead: Any,
        *,
        max_matching_ngram_size: Any = None,
        adaptive: Any = None,
        draft_engine: Engine | None = None,
        speculative: bool = False,
        **options: Any,
    ) -> tuple[LookaheadConfig | None, Engine | None]:
        """Return the config that ``lookahead`` means for this model, and the engine of the second model or None.

        Args:
            lookahead: as for :func:`~ipex_lookahead.runtime.lookahead.resolve_lookahead`.
            max_matching_ngram_size: longest n-gram that prompt lookup matches.
            adaptive: False always drafts the largest allowed number of tokens.
            draft_engine: engine of a draft model for this generation; None: ``self.draft_engine``, unless
                ``lookahead`` names another strategy.
            speculative: draft with the low-bit copy where ``lookahead`` is None.
            **options: see :func:`~ipex_lookahead.runtime.lookahead.second_model_lookahead`.

        Raises:
            InputError: a value outside what is allowed, or a strategy that needs a head or a draft model that this
                model does not have.
        """
        named = isinstance(lookahead, LookaheadConfig) or (isinstance(lookahead, str) and lookahead != "auto")
        strategy, engine = None, self.draft_engine
        if draft_engine is not None:
            strategy, engine = "draft_model", draft_engine
        elif engine is not None and lookahead is not None and not named:
            strategy = "draft_model"
        elif speculative:
            strategy = "self_speculation"
        lookahead = second_model_lookahead(lookahead, strategy=strategy, **options)
        config = resolve_lookahead(lookahead, max_matching_ngram_size, adaptive)
        check_head(config, self.engine)
        if config is None or config.strategy not in SECOND_MODEL:
            return config, None
        if config.strategy == "self_speculation":
            return config, self._low_bit_copy()
        if engine is None:
            make_proposer(config)  # raises the error about the missing second model
        return config, engine

    def drafting(
        self,
        config: LookaheadConfig | None,
        second_engine: Engine | None = None,
        prefixes: PrefixCache | None = None,
        **options: Any,
    ) -> Drafting:
        """Return the drafting of one request; ``options`` are those of :class:`Drafting`."""
        return Drafting(
            self.engine, config, costs=self.costs, second_engine=second_engine, prefixes=prefixes, **options
        )

    def _low_bit_copy(self) -> Engine:
        with self._making_copy:
            if self.copy is None:
                self.copy = low_bit_copy(self.engine)
            return self.copy

    # ---- generating --------------------------------------------------------------------------------------------------

    def stepwise(
        self,
        sequences: abc.Sequence[Sequence],
        config: LookaheadConfig | None = None,
        second_engine: Engine | None = None,
        *,
        stats: GenerationStats | None = None,
        own: Any = None,
        memory: PrefixCache | None = None,
        draft_memory: PrefixCache | None = None,
        cancelled: Callable[[], bool] | None = None,
        **callbacks: Any,
    ) -> Generator[abc.Sequence[Sequence], None, abc.Sequence[Sequence]]:
        """Generate several sequences in the same forwards, and yield them after each forward.

        Closing the generator abandons the sequences.

        Args:
            sequences: changed; without proposers.
            config: how to draft; None decodes token by token.
            second_engine: engine of the second model, for a strategy of ``SECOND_MODEL``.
            stats: filled, also when an exception ends the generation.
            own: makes the caller's own proposers, see :class:`Drafting`.
            memory: prefix cache of a single sequence; None: the sequences own their KV caches.
            draft_memory: the same of the second model; None: for these sequences alone.
            cancelled: called after each chunk of the prompts and after each step; True ends all sequences.
            **callbacks: ``callbacks``, ``on_start`` and ``on_prefill`` of
                :class:`~ipex_lookahead.decoding.sequence_group.SequenceGroup`. A batch with ``callbacks`` decodes
                without drafts.

        Returns:
            The sequences.
        """
        stats = GenerationStats() if stats is None else stats
        config = config if callbacks.get("callbacks") is None else None
        if self.costs is not None and any(sequence.limit - len(sequence.prompt) > 1 for sequence in sequences):
            self.costs.ready(config)
        stats.sequences = len(sequences)
        sampler = next((sequence.sampler for sequence in sequences if sequence.sampler is not None), None)
        if sampler is not None:
            stats.seed, stats.temperature = sampler.seed, sampler.temperature
        if config is not None:
            stats.strategy = config.strategy
        name = None if config is None else store_of(config.remembering, next((s.adapter for s in sequences), None))
        store = None if name is None else self.stores.get(name)
        for number, sequence in enumerate(sequences):
            sequence.index = number
        if draft_memory is None and second_engine is not None and len(sequences) > 1:
            draft_memory = memory_for(second_engine, [sequence.limit for sequence in sequences])
        drafting = self.drafting(config, second_engine, draft_memory, own=own)
        drafting.prepare(sequences, store)
        group = SequenceGroup(sequences, stats, drafting.begin, **callbacks)
        options: dict[str, Any] = {"memory": memory, "prefill_rows": self.prefill_rows, "turn": self.turn}
        try:
            for _ in decode(self.engine, group, cancelled=cancelled, **options):
                yield sequences
        finally:
            drafting.end(sequences)
        if name is not None:
            self.stores.add(name, [sequence.new for sequence in sequences])
        return sequences
