"""The native engine: our own C++ core on any x86-64 CPU. Row-invariant, hence exact under lookahead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import GatedMlp, ModelSpec, Tensor, named_tensors
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.low_bit import packed_bytes
from ipex_lookahead.checkpoints.placed import with_offset
from ipex_lookahead.engines.api import Batch, Cache, PhaseTime, StepOutput
from ipex_lookahead.engines.input_order import SHARED, Order, reordered, warn_of_decoded, with_order
from ipex_lookahead.engines.machine import check_threads, default_threads
from ipex_lookahead.engines.native.core import CORE_RAISES, core_build, core_error
from ipex_lookahead.engines.native.decoder import empty_decoder, in_order
from ipex_lookahead.engines.native.linear import plain, streams
from ipex_lookahead.engines.prefetch import prefetched
from ipex_lookahead.engines.weights import PlannedWeights, WeightPlan, check_shape, random_matrix, read_vector
from ipex_lookahead.errors import ContextLengthError, InputError, OutOfMemoryError, arg
from ipex_lookahead.formats import as_floats
from ipex_lookahead.formats.base import PackedWeight

Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int, str], None]
"""Called as progress(tensors done, tensors in all, name of the tensor in hand)."""

READ_AHEAD = 32 << 20
"""Bytes of weights that may be read and wait for their packing, or one that is larger."""
AT_A_TIME = 4 << 20
"""Bytes of weights that are read and handed over at a time: taking turns costs more than a small tensor does."""


class NativeCache:
    """Keys and values of one sequence, in pages that forks share, and its states. See ``engines.base.Cache``."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    @property
    def length(self) -> int:
        """Committed positions."""
        return int(self.raw.length)

    def keep(self, rows: Sequence[int]) -> None:
        """Commit a path of the last step's rows. Raises InputError if it is none, EngineError as all that follow do."""
        try:
            self.raw.keep(rows if isinstance(rows, list) else list(rows))
        except CORE_RAISES as error:
            raise core_error(error) from None

    def crop(self, length: int) -> int:
        """Go back to the first ``length`` positions, or as far as layers can: see ``engines.base.Cache``.

        Returns the length now. Raises InputError if there are fewer.
        """
        try:
            return int(self.raw.crop(length))
        except CORE_RAISES as error:
            raise core_error(error) from None

    @property
    def state_bytes(self) -> int:
        """See ``engines.base.Checkpointed``. Raises EngineError while another thread is at it."""
        try:
            return int(self.raw.state_bytes)
        except CORE_RAISES as error:
            raise core_error(error) from None

    def checkpoint(self) -> None:
        """Make the present length one that ``crop`` can go back to; drops the last step's rows."""
        try:
            self.raw.checkpoint()
        except CORE_RAISES as error:
            raise core_error(error) from None

    def fork(self) -> NativeCache:
        """A second sequence with the same committed prefix. Raises EngineError while another thread is at this one."""
        try:
            return NativeCache(self.raw.fork())
        except CORE_RAISES as error:
            raise core_error(error) from None


class NativeEngine:
    """A decoder in the native core. Make one with ``NativeEngine.load``."""

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
        self._idle_bytes = self._expert_bytes = 0
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
        """Read, quantise and pack the weights tensor by tensor, in the order a step reads them.

        One thread reads, checks and quantises while this one and the core's pack what is there. At no time more than
        the packed model, two tensors and ``READ_AHEAD`` are in memory.

        Raises:
            ModelFormatError: a tensor is missing, has another shape than the config says, or holds NaN or infinity.
            EngineError: no compiled core, or a forced instruction set that this processor lacks.
        """
        for tensor in spec.tensors():
            check_shape(checkpoint, tensor)
        threads = default_threads() if threads is None else check_threads(threads)
        total, done = sum(tensor.is_matrix for tensor in spec.tensors()), 0
        planned = PlannedWeights(checkpoint, spec, plan, threads)

        def read(tensor: Tensor) -> PackedWeight | Floats:
            return planned.read(tensor) if tensor.is_matrix else read_vector(checkpoint, tensor)

        def size(tensor: Tensor) -> int:
            return packed_bytes(checkpoint.info(tensor.name))

        tensors = (tensor for _, tensor in in_order(spec))
        with prefetched(read, tensors, size, run=AT_A_TIME, most=READ_AHEAD) as reads:

            def matrix(tensor: Tensor) -> PackedWeight:
                nonlocal done
                if progress is not None:
                    progress(done, total, tensor.name)
                done += 1
                weight = next(reads)
                assert isinstance(weight, PackedWeight)
                return weight

            def vector(tensor: Tensor) -> Floats:
                values = next(reads)
                assert isinstance(values, np.ndarray)
                return values

            engine = cls.build(spec, plan.label, matrix, vector, threads=threads, kv_cache=kv_cache)
        if progress is not None:
            progress(total, total, "")
        return engine

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
        """A decoder of that shape with random weights, for measuring: its speed is real, its text is not.

        Layers repeat the same random matrices, each in memory of its own. ``head_low_bit`` is the lm_head's format.
        """
        rng = np.random.default_rng(seed)
        routers = {*spec.routers()}
        norms = {tensor.name for name, tensor in named_tensors(spec) if name.endswith(".weight")}  # of the vectors
        matrices: dict[tuple[tuple[int, ...], str], PackedWeight] = {}
        vectors: dict[tuple[int, ...], Floats] = {}

        def matrix(tensor: Tensor) -> PackedWeight:
            name = (head_low_bit or low_bit) if tensor is spec.head_weight else low_bit
            key = (tensor.shape, "fp32" if tensor.name in routers else name)
            if key not in matrices:
                matrices[key] = random_matrix((tensor.shape[0], tensor.shape[1]), key[1], group_size, rng)
            return matrices[key]

        def vector(tensor: Tensor) -> Floats:
            if tensor.shape not in vectors:
                vectors[tensor.shape] = rng.standard_normal(tensor.shape, dtype=np.float32) * np.float32(0.1)
            values = vectors[tensor.shape]
            return values + np.float32(1) if tensor.name in norms else values

        return cls.build(spec, low_bit, matrix, vector, threads=threads, kv_cache=kv_cache)

    @classmethod
    def build(
        cls,
        spec: ModelSpec,
        low_bit: str,
        matrix: Callable[[Tensor], PackedWeight],
        vector: Callable[[Tensor], Floats],
        *,
        threads: int | None = None,
        kv_cache: str = "fp16",
    ) -> NativeEngine:
        """A decoder whose weights two functions give, asked in the order a step reads them.

        Args:
            spec: what it is.
            low_bit: the name that its format goes by.
            matrix: a tensor of two dimensions -> the weight, in any format; a router's is decoded to floats.
            vector: a tensor of one dimension -> float32 [n].
            threads: None = as many as the machine has cores for.
            kv_cache: "fp16" or "int8".

        Raises:
            UnsupportedModelError: the core does not run a model like that.
            EngineError: no compiled core, or a forced instruction set that this processor lacks.
        """
        decoder, routers = empty_decoder(spec, threads, kv_cache), {*spec.routers()}
        decoded: Counter[str] = Counter()
        orders: dict[str, Order] = {}
        sizes: dict[str, int] = {}
        for name, tensor in in_order(spec):
            if not tensor.is_matrix:
                decoder.set_vector(name, vector(tensor))
                continue
            weight, shared = matrix(tensor), _shared(name)
            if tensor.name in routers:
                weight = as_floats(weight)
            if (
                weight.order is not None and shared == name
            ):  # the first of those that share inputs decides on their order
                orders[name] = np.require(weight.order, requirements=("C", "A"))
                decoder.set_order(name, orders[name])
            made = reordered(weight, orders.get(shared))
            if made.format != weight.format:
                decoded[weight.format] += 1
            decoder.set_matrix(name, *streams(made))
            sizes[tensor.name] = made.nbytes
        warn_of_decoded(decoded)
        engine = cls(decoder, spec, low_bit, kv_cache)
        engine._orders = orders
        experts = [[_bytes(expert, sizes) for expert in mixture.experts] for mixture in spec.mixtures]
        idle = (sum(each[mixture.used :]) for mixture, each in zip(spec.mixtures, experts, strict=True))
        engine._idle_bytes = sum(idle) + (0 if spec.tied else sizes[spec.embedding.name])
        engine._expert_bytes = experts[0][0] if experts else 0
        return engine

    def new_cache(self, blank: int = 0) -> NativeCache:
        """An empty sequence; or one of ``blank`` positions of zeros, for measuring steps at that length.

        Raises InputError where ``blank`` is negative or beyond the context.
        """
        cache = NativeCache(self._decoder.new_cache())
        try:
            if blank:
                cache.raw.fill_blank(blank)
        except CORE_RAISES as error:
            raise core_error(error, "blank does not fit: ") from None
        return cache

    def forward(self, batch: Batch) -> StepOutput:
        """One native call for the whole decoder, GIL released. See ``engines.base.Engine.forward``."""
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
        """The core's decoder, whose embedding and lm_head a drafting head shares."""
        return self._decoder

    @property
    def experts_touched(self) -> int:
        """Experts that the last step read, over all layers; what a step of a mixture costs goes by it."""
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
        """Facts for ``info`` and for reports."""
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
        """All tensors in plain order under the checkpoint's names, one at a time: what ``save_low_bit`` writes.

        Norms are as Hugging Face's files have them: Gemma's less 1, which loses no bit of a sum with 1.
        """
        for name, tensor in named_tensors(self.spec):
            if tensor.is_matrix:
                weight = plain(self._decoder.export_matrix(name))
                yield tensor.name, with_order(weight, self._orders.get(_shared(name)))
            else:
                values = self._decoder.export_vector(name).reshape(tensor.shape)
                yield tensor.name, with_offset(PackedWeight("fp32", tensor.shape, values), -tensor.hf.offset)


def _shared(name: str) -> str:
    """The first of the matrices that are given the same inputs as that of this name; "" for one that has no order."""
    match = re.fullmatch(r"(layers\.\d+\.\w+\.)(\w+)\.weight", name)
    return f"{match[1]}{SHARED[match[2]]}.weight" if match and match[2] in SHARED else ""


def _bytes(part: GatedMlp, sizes: dict[str, int]) -> int:
    """Of its matrices, by those of each tensor."""
    return sum(sizes[tensor.name] for _, tensor in named_tensors(part) if tensor.is_matrix)


def _raw(cache: Cache) -> Any:
    if not isinstance(cache, NativeCache):
        raise InputError(f"the native engine needs its own caches, got {type(cache).__name__}")
    return cache.raw
