"""The native engine: our own C++ core on any x86-64 CPU. Row-invariant, hence exact under lookahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ipex_lookahead.architectures.spec import GatedMlp, ModelSpec, named_tensors
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.engines.api import Batch, Cache, PhaseTime, StepOutput
from ipex_lookahead.engines.load_weights import (
    Order,
    Progress,
    Read,
    load_weights,
    random_weights,
    reading,
    stored_weights,
    walk,
)
from ipex_lookahead.engines.machine import check_threads, default_threads
from ipex_lookahead.engines.native.core import CORE_RAISES, core_build, core_error
from ipex_lookahead.engines.native.decoder import empty_decoder, set_weight
from ipex_lookahead.engines.native.linear import plain
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import ContextLengthError, InputError, OutOfMemoryError, arg
from ipex_lookahead.formats.base import PackedWeight


class NativeCache:
    """The KV cache (in pages that forks share) and states of one sequence. See ``engines.api.Cache``."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    @property
    def length(self) -> int:
        """The number of committed positions."""
        return int(self.raw.length)

    def keep(self, rows: Sequence[int]) -> None:
        """Commit a path of the last step's rows.

        Raises InputError if it is not a path, EngineError (as all methods here) if another thread uses the cache.
        """
        try:
            self.raw.keep(rows if isinstance(rows, list) else list(rows))
        except CORE_RAISES as error:
            raise core_error(error) from None

    def crop(self, length: int) -> int:
        """Crop to the first ``length`` positions, or to fewer where layers cannot: see ``engines.api.Cache``.

        Returns the new length. Raises InputError if there are fewer positions.
        """
        try:
            return int(self.raw.crop(length))
        except CORE_RAISES as error:
            raise core_error(error) from None

    @property
    def state_bytes(self) -> int:
        """See ``engines.api.Checkpointed``."""
        try:
            return int(self.raw.state_bytes)
        except CORE_RAISES as error:
            raise core_error(error) from None

    def checkpoint(self) -> None:
        """Make the current length one that ``crop`` can restore; drops the last step's rows."""
        try:
            self.raw.checkpoint()
        except CORE_RAISES as error:
            raise core_error(error) from None

    def fork(self) -> NativeCache:
        """Return a second sequence with the same committed prefix."""
        try:
            return NativeCache(self.raw.fork())
        except CORE_RAISES as error:
            raise core_error(error) from None


class NativeEngine:
    """A decoder in the native core. Made by ``NativeEngine.load``."""

    name = "native"
    row_invariant = True
    supports_tree = True
    times_phases = True

    def __init__(self, decoder: Any, spec: ModelSpec, low_bit: str, kv_cache: str = "fp16") -> None:
        self._decoder = decoder
        self._forward = decoder.forward
        self.spec = spec
        self.low_bit = low_bit
        self.kv_cache = kv_cache
        self.vocab_size = spec.vocab
        self.max_context = spec.max_context
        self.facts: dict[str, Any] = {}
        self.head: Any = None
        self._is_mixture = bool(spec.mixtures)
        self.embedding_bytes = self._idle_bytes = self._expert_bytes = 0
        self._orders: dict[str, Order] = {}

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        plan: WeightPlan,
        *,
        threads: int | None = None,
        kv_cache: str = "fp16",
        progress: Progress | None = None,
    ) -> NativeEngine:
        """Read, quantize and pack the weights tensor by tensor, in the order in which a step reads them.

        One thread reads, checks and quantizes while this thread and the core's pack. Peak memory is the packed model,
        two tensors and ``READ_AHEAD``.

        Raises:
            ModelFormatError: a tensor is missing, has another shape than the config implies, or has NaN or infinity.
            EngineError: no compiled core, or a forced instruction set that this processor lacks.
        """
        threads = default_threads() if threads is None else check_threads(threads)
        tensors = (tensor for _, tensor in walk(spec))
        with reading(checkpoint, spec, plan, tensors, threads, progress) as read:
            return cls.build(spec, plan.label, read, threads=threads, kv_cache=kv_cache)

    @classmethod
    def random(
        cls,
        spec: ModelSpec,
        low_bit: str,
        *,
        group_size: int = 32,
        head_low_bit: str | None = None,
        threads: int | None = None,
        kv_cache: str = "fp16",
        seed: int = 0,
    ) -> NativeEngine:
        """Make a decoder with random weights, for measuring. See :func:`random_weights`.

        Layers have equal matrices, each with its own memory.
        """
        read = random_weights(spec, low_bit, group_size=group_size, head_low_bit=head_low_bit, seed=seed)
        return cls.build(spec, low_bit, read, threads=threads, kv_cache=kv_cache)

    @classmethod
    def build(
        cls, spec: ModelSpec, low_bit: str, read: Read, *, threads: int | None = None, kv_cache: str = "fp16"
    ) -> NativeEngine:
        """Make a decoder with the weights that ``read`` returns; see :func:`load_weights`.

        Args:
            spec: the model.
            low_bit: the name of its format.
            read: returns a tensor's weight.
            threads: number of threads; None: see ``default_threads``.
            kv_cache: "fp16" or "int8".

        Raises:
            UnsupportedModelError: the core does not support the model.
            EngineError: no compiled core, or a forced instruction set that this processor lacks.
        """
        engine = cls(empty_decoder(spec, threads, kv_cache), spec, low_bit, kv_cache)
        sizes: dict[str, int] = {}
        for name, tensor, weight in load_weights(spec, read, engine._orders):
            set_weight(engine._decoder, name, weight, engine._orders.get(name))
            sizes[tensor.name] = weight.nbytes
        experts = [[_bytes(expert, sizes) for expert in mixture.experts] for mixture in spec.mixtures]
        idle = (sum(each[mixture.used :]) for mixture, each in zip(spec.mixtures, experts, strict=True))
        engine.embedding_bytes = sizes[spec.embedding.name]
        engine._idle_bytes = sum(idle) + (0 if spec.tied else engine.embedding_bytes)
        engine._expert_bytes = experts[0][0] if experts else 0
        return engine

    def new_cache(self, blank: int = 0) -> NativeCache:
        """Return an empty sequence; or one of ``blank`` positions of zeros, for measuring steps at that length.

        Raises InputError if ``blank`` is negative or beyond the context.
        """
        cache = NativeCache(self._decoder.new_cache())
        try:
            if blank:
                cache.raw.fill_blank(blank)
        except CORE_RAISES as error:
            raise core_error(error, "blank does not fit: ") from None
        return cache

    def forward(self, batch: Batch) -> StepOutput:
        """Run the decoder in one native call with the GIL released. See ``engines.api.Engine.forward``."""
        wants = batch.wants
        try:
            hidden = wants.hidden and sorted(wants.hidden)
            ids, logits, states, phases, _ = self._forward(
                [_raw(c) for c in batch.caches],
                batch.counts,
                batch.settled,
                batch.tokens,
                batch.parents,
                wants.rows,
                wants.logits,
                max(wants.top, 1),
                hidden,
                wants.hidden_rows,
                wants.timings,
            )
        except IndexError as error:
            raise ContextLengthError(str(error), hint=f"shorten the prompt or {arg('max_new_tokens')}") from None
        except MemoryError:
            said = f"there is no memory for {len(batch.tokens)} more tokens"
            raise OutOfMemoryError(said, hint=f"shorten the prompt or {arg('max_new_tokens')}") from None
        except CORE_RAISES as error:
            raise core_error(error, "the step's arguments do not fit: ") from None
        experts = self.experts_touched if self._is_mixture else 0
        output = StepOutput(ids[:, 0], logits, ids if wants.top else None, experts)
        if states is not None:
            output.hidden = dict(zip(hidden, states, strict=True))
        if phases is not None:
            output.timings = [PhaseTime(*one) for one in phases]
        return output

    @property
    def decoder(self) -> Any:
        """The core's decoder. A drafting head shares its embedding and lm_head."""
        return self._decoder

    @property
    def experts_touched(self) -> int:
        """Number of experts that the last step read, over all layers. The cost of a mixture's step depends on it."""
        return int(self._decoder.experts_touched())

    @property
    def state_bytes(self) -> int:
        """See :class:`ipex_lookahead.engines.api.KeepsStates`."""
        return int(self._decoder.cache_state_bytes)

    @property
    def kernels(self) -> str:
        """See :class:`ipex_lookahead.engines.api.NamesKernels`."""
        return core_build()

    def describe(self) -> dict[str, Any]:
        """Return facts for ``info`` and reports."""
        return {
            "engine": self.name,
            "isa": self._decoder.isa,
            "threads": self._decoder.threads,
            "low_bit": self.low_bit,
            "weight_bytes": int(self._decoder.weight_bytes),
            "step_bytes": int(self._decoder.weight_bytes) - self._idle_bytes,
            "expert_bytes": self._expert_bytes,
            "kv_cache": self.kv_cache,
            "kv_bytes_per_token": int(self._decoder.cache_bytes_per_position),
            **({"state_bytes": self.state_bytes} if self.state_bytes else {}),
            "max_context": self.max_context,
            "row_invariant": self.row_invariant,
            **({"experts": self._experts()} if self._is_mixture else {}),
            **self.facts,
        }

    def _experts(self) -> int:
        return sum(len(mixture.experts) for mixture in self.spec.mixtures)

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """See :func:`stored_weights`."""
        return stored_weights(
            self.spec,
            lambda name, _: plain(self._decoder.export_matrix(name)),
            lambda name, _: self._decoder.export_vector(name),
            self._orders,
        )


def _bytes(part: GatedMlp, sizes: dict[str, int]) -> int:
    """Return the bytes of an MLP's matrices; ``sizes`` has those of each tensor."""
    return sum(sizes[tensor.name] for _, tensor in named_tensors(part) if tensor.is_matrix)


def _raw(cache: Cache) -> Any:
    if not isinstance(cache, NativeCache):
        raise InputError(f"the native engine needs its own caches, got {type(cache).__name__}")
    return cache.raw
