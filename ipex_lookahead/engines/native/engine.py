"""The native engine: our own C++ core on any x86-64 CPU. Row-invariant, hence exact under lookahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.adapter import Adapter, AppliedAdapter, adaptable, check_adapter
from ipex_lookahead.architectures.spec import GatedMlp, ImageInputs, ModelSpec, named_tensors
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.engines.api import Batch, Cache, PhaseTime, StepOutput
from ipex_lookahead.engines.cache_images import Bytes, image_bytes, in_order, layout_of
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

_OTHER_IMAGE = "the cache's image does not fit this model: "


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

    def export_pages(self, first: int, last: int) -> Bytes:
        """See ``engines.api.ExportsCache``."""
        try:
            return np.asarray(self.raw.export_pages(first, last))
        except CORE_RAISES as error:
            raise core_error(error) from None

    def export_state(self) -> Bytes:
        """See ``engines.api.ExportsCache``."""
        try:
            return np.asarray(self.raw.export_state())
        except CORE_RAISES as error:
            raise core_error(error) from None

    def import_pages(self, first: int, last: int, data: Bytes) -> None:
        """Continue the import of an image into an empty cache. Raises InputError for bytes that do not fit."""
        try:
            self.raw.import_pages(first, last, data)
        except CORE_RAISES as error:
            raise core_error(error, _OTHER_IMAGE) from None

    def import_state(self, length: int, data: Bytes) -> None:
        """Finish an import, after all pages. Raises InputError for bytes that do not fit."""
        try:
            self.raw.import_state(length, data)
        except CORE_RAISES as error:
            raise core_error(error, _OTHER_IMAGE) from None


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
        self._adapters: dict[str, Any] = {}  # the core's, by digest

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

    @property
    def cache_layout(self) -> str:
        """See ``engines.api.ImportsCache``."""
        return layout_of(self.name, self.spec, self.kv_cache, self.head)

    def import_cache(self, length: int, pages: Iterable[tuple[int, int, Bytes]], state: Bytes) -> NativeCache:
        """See ``engines.api.ImportsCache``. The cache follows the head if the exported one did."""
        cache = self.new_cache()
        if self.head is not None:
            self.head.follow(cache)
        for first, last, data in in_order(length, pages, self.max_context):
            cache.import_pages(first, last, data)
        cache.import_state(length, image_bytes(state))
        return cache

    def forward(self, batch: Batch) -> StepOutput:
        """Run the decoder in one native call with the GIL released. See ``engines.api.Engine.forward``."""
        wants, tokens, images = batch.wants, batch.tokens, None
        if batch.given:
            try:
                tokens, images = self._with_images(batch)
            except (AttributeError, IndexError, TypeError, ValueError) as error:
                raise InputError(f"the step's images do not fit: {error}") from None
        try:
            hidden = wants.hidden and sorted(wants.hidden)
            adapters: tuple[Any, ...] = self._applied(batch.adapters) if batch.adapters else ()
            ids, logits, states, phases, _ = self._forward(
                [_raw(c) for c in batch.caches],
                batch.counts,
                batch.settled,
                tokens,
                batch.parents,
                wants.rows,
                wants.logits,
                max(wants.top, 1),
                hidden,
                wants.hidden_rows,
                wants.timings,
                *adapters,
                offsets=batch.offsets,
                images=images,
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
    def adapter_spec(self) -> ModelSpec:
        """See :class:`ipex_lookahead.engines.api.TakesAdapters`."""
        return self.spec

    def load_adapter(self, adapter: Adapter) -> None:
        """See :class:`ipex_lookahead.engines.api.TakesAdapters`."""
        if adapter.digest in self._adapters:
            return
        check_adapter(adapter, self.spec)
        paths = adaptable(self.spec)
        changes = [(paths[name], one.a, one.b, one.scale) for name, one in adapter.matrices.items()]
        try:
            self._adapters[adapter.digest] = self._decoder.load_adapter(changes)
        except MemoryError:
            raise OutOfMemoryError(f"there is no memory for adapter {adapter.name}: {adapter.nbytes} bytes") from None
        except CORE_RAISES as error:
            raise core_error(error, f"adapter {adapter.name} does not fit: ") from None

    def unload_adapter(self, adapter: Adapter) -> None:
        """See :class:`ipex_lookahead.engines.api.TakesAdapters`."""
        self._adapters.pop(adapter.digest, None)

    @property
    def adapter_bytes(self) -> int:
        """See :class:`ipex_lookahead.engines.api.TakesAdapters`."""
        return sum(int(one.bytes) for one in self._adapters.values())

    def _applied(self, adapters: Sequence[AppliedAdapter | None]) -> tuple[Any, ...]:
        """Return the arguments of the core's step for the adapters of a batch."""
        if not any(adapters):
            return ()
        for one in adapters:
            if one is not None and one.adapter.digest not in self._adapters:
                raise InputError(f"adapter {one.adapter.name} is not loaded", hint="call load_adapter first")
        raw = [None if one is None else self._adapters[one.adapter.digest] for one in adapters]
        return None, False, raw, [0.0 if one is None else one.scale for one in adapters]

    def _with_images(self, batch: Batch) -> tuple[npt.NDArray[np.int32], tuple[Any, ...]]:
        """Return the core's tokens, with the padding token for rows of images, and its arrays for these rows."""
        if self.spec.images is None:
            raise InputError(f"{self.spec.model_type} takes no images")
        rows, starts = len(batch.tokens), np.concatenate([[0], np.cumsum(batch.counts)])
        deepest = max(len(one.deepstack) for one in batch.given)
        if any(len(one.rows) and len(one.deepstack) != deepest for one in batch.given):
            raise InputError("the images of a step have different numbers of deepstack features")
        tokens, at = batch.tokens.copy(), np.full((rows, 1), -1, np.int32)
        positions, seen = np.full((rows, 3), -1, np.int32), np.full((rows, 1), -1, np.int32)
        count = 0
        for one in batch.given:
            where = slice(starts[one.sequence], starts[one.sequence + 1])
            tokens[where][one.rows] = self.spec.images.pad
            at[where][one.rows, 0] = np.arange(count, count + len(one.rows))
            count += len(one.rows)
            if one.positions is not None:
                positions[where] = one.positions
            if one.last_seen is not None:
                seen[where, 0] = one.last_seen
        embeddings = np.concatenate([one.embeddings for one in batch.given])
        deepstack = [np.concatenate([one.deepstack[i] for one in batch.given]) for i in range(deepest)]
        turned = any(one.positions is not None for one in batch.given)
        spans = any(one.last_seen is not None for one in batch.given)
        return tokens, (at, embeddings, deepstack, positions if turned else None, seen if spans else None)

    @property
    def images(self) -> ImageInputs | None:
        """See :class:`ipex_lookahead.engines.api.TakesImages`."""
        return self.spec.images

    @property
    def spans(self) -> bool:
        """See :class:`ipex_lookahead.engines.api.TakesImages`."""
        return self.spec.spans

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
            **({"adapters": len(self._adapters), "adapter_bytes": self.adapter_bytes} if self._adapters else {}),
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
