"""The OpenCL engine: Intel GPUs with nothing but the driver, and the native core's bits. Row-invariant, hence exact."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np

from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.engines.api import FINAL_NORM, MOST_TOP, Batch, OutputRequest, StepOutput, refuse_images
from ipex_lookahead.engines.cache_images import PAGE, Bytes, ImageReader, in_order, layout_of
from ipex_lookahead.engines.load_weights import Progress, Read, reading, walk, weights_of
from ipex_lookahead.engines.native.decoder import KV_CACHES
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.opencl.cache import OpenClCache
from ipex_lookahead.engines.opencl.decoder import Decoder
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.placement import check_room
from ipex_lookahead.engines.opencl.programs import sources
from ipex_lookahead.engines.opencl.step import StepRows, plan
from ipex_lookahead.engines.opencl.uploads import Floats
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import InputError, NonFiniteError, arg
from ipex_lookahead.formats.base import PackedWeight


def check_wants(wants: OutputRequest, layers: int) -> None:
    """Raise InputError for outputs that a model of ``layers`` layers on a device does not return."""
    top = wants.top
    if not isinstance(top, (int, np.integer)) or not 0 <= top <= MOST_TOP:
        raise InputError(f"top is {top!r}; it must be from 0 to {MOST_TOP}")
    if wants.timings:
        raise InputError("the OpenCL engine returns no timings", hint=f"use {arg('engine', 'native')}")
    if len({*wants.hidden}) < len(wants.hidden) or not all(FINAL_NORM <= one <= layers for one in wants.hidden):
        raise InputError(
            f"hidden is {wants.hidden!r}; hidden states are those of 0 to {layers} layers, each once, or -1, after the"
            " final norm"
        )


class OpenClEngine:
    """A decoder on an OpenCL device. Made by ``OpenClEngine.load``."""

    name = "opencl"
    row_invariant = True
    supports_tree = True
    warms_up: Literal[True] = True
    """See :class:`ipex_lookahead.engines.api.WarmsUp`."""

    def __init__(self, decoder: Decoder, low_bit: str, kv_cache: str = "fp16") -> None:
        self._decoder = decoder
        self._lock = threading.Lock()
        self.spec: ModelSpec = decoder.spec
        self.low_bit = low_bit
        self.kv_cache = kv_cache
        self.vocab_size = self.spec.vocab
        self.max_context = self.spec.max_context
        self.facts: dict[str, Any] = {}
        self.head: Any = None

    @property
    def decoder(self) -> Decoder:
        """The decoder. A drafting head shares its embedding, lm_head and pages."""
        return self._decoder

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        plan: WeightPlan,
        device: Device,
        *,
        cpu_moe: int = 0,
        threads: int | None = None,
        kv_cache: str = "fp16",
        progress: Progress | None = None,
    ) -> OpenClEngine:
        """Read, quantize, pack and upload the weights, one layer at a time.

        ``cpu_moe``: see :meth:`build`.

        Raises:
            ModelFormatError: a tensor is missing, has another shape than the config implies, or has NaN or infinity.
            UnsupportedModelError: kernels do not support the model.
            EngineError: there is no compiled core, which packs weights, or the device lacks the memory.
        """
        tensors = (tensor for _, tensor in walk(spec))
        with reading(checkpoint, spec, plan, tensors, threads, progress) as read:
            return cls.build(spec, plan.label, read, device, kv_cache, threads, cpu_moe=cpu_moe)

    @classmethod
    def build(
        cls,
        spec: ModelSpec,
        low_bit: str,
        read: Read,
        device: Device,
        kv_cache: str = "fp16",
        threads: int | None = None,
        embeds: bool = True,
        cpu_moe: int = 0,
    ) -> OpenClEngine:
        """Make a decoder with the weights that ``read`` returns; see :func:`load_weights`. Raises as ``load``.

        Args:
            spec: the model.
            low_bit: the name of its format.
            read: returns a tensor's weight.
            device: the device.
            kv_cache: "fp16" or "int8".
            threads: number of CPU threads that pack the weights; None: one per core.
            embeds: whether the device embeds tokens. If not, :meth:`forward` is given hidden states.
            cpu_moe: number of first layers with their routed experts on the CPU, in the native core.
        """
        if kv_cache not in KV_CACHES:
            raise InputError(argument="kv_cache", got=kv_cache, allowed=f"one of {', '.join(KV_CACHES)}")
        return cls(Decoder(device, spec, read, kv_cache, threads, embeds, cpu_moe), low_bit, kv_cache)

    @classmethod
    def moved(cls, engine: NativeEngine, device: Device) -> OpenClEngine:
        """Copy an engine's weights, bit for bit, from the CPU to a device. Raises as ``load``."""
        check_room(device, engine.describe()["weight_bytes"])
        made = cls.build(engine.spec, engine.low_bit, weights_of(engine), device, engine.kv_cache)
        made.facts |= engine.facts | {"chosen": f"opencl: it was moved to {device.facts()['device']}"}
        return made

    def new_cache(self, blank: int = 0) -> OpenClCache:
        """Return an empty sequence; or one of ``blank`` positions of zeros, for measuring steps at that length.

        Raises InputError if ``blank`` is negative or beyond the context.
        """
        if not 0 <= blank <= self.max_context:
            raise InputError(argument="blank", got=blank, allowed=f"from 0 to {self.max_context}, the context")
        cache = self._decoder.new_cache()
        if blank:
            cache.fill_blank(blank)
        return cache

    @property
    def cache_layout(self) -> str:
        """See ``engines.api.ImportsCache``."""
        return layout_of(self.name, self.spec, self.kv_cache, self.head)

    def import_cache(self, length: int, pages: Iterable[tuple[int, int, Bytes]], state: Bytes) -> OpenClCache:
        """See ``engines.api.ImportsCache``. The cache follows the head if the exported one did."""
        cache = self.new_cache()
        if self.head is not None:
            self.head.follow(cache)
        for first, last, data in in_order(length, pages, self.max_context):
            cache.import_pages(first, last, ImageReader(data))
        cache.import_state(length, ImageReader(state))
        return cache

    def forward(self, batch: Batch, hidden: Floats | None = None) -> StepOutput:
        """The whole decoder on the device: ids in, ids out. See ``engines.api.Engine.forward``.

        ``hidden``, float32 [rows, hidden size]: what the first layer reads, where the embedding is elsewhere.
        """
        refuse_images(self.name, batch)
        wants = batch.wants
        check_wants(wants, len(self.spec.layers))
        top, layers = int(wants.top), tuple(sorted(wants.hidden))
        with self._lock, ExitStack() as claims:
            checked = plan(batch, self._decoder.pages, self.vocab_size, self.max_context)
            for sequence in checked.sequences:
                claims.enter_context(sequence.cache.claim("the step"))
                sequence.cache.set_step([])  # should it fail half-way, nothing of the step before can be kept either
            features = _features(checked.sequences)
            ids, logits, experts, states = self._decoder.run(
                checked, max(top, 1), bool(wants.logits), hidden, layers, features
            )
            for sequence in checked.sequences:
                sequence.cache.stepped()
            if (ids < -1).any() or (ids[:, :1] < 0).any():
                raise NonFiniteError("the model's logits are not finite", hint="the checkpoint's weights are damaged")
            for sequence in checked.sequences:
                sequence.cache.set_step(sequence.parents, sequence.settled)
                if sequence.cache.head is not None:
                    own = checked.tokens[sequence.first : sequence.first + sequence.rows]
                    sequence.cache.head.step(own.tolist(), self._decoder.features, sequence.first)
        output = StepOutput(ids[:, 0], logits, ids if top else None, experts)
        if states is not None:
            output.hidden = {layer: np.ascontiguousarray(states[checked.hidden, i]) for i, layer in enumerate(layers)}
        return output

    def weight(self, name: str) -> PackedWeight:
        """Return "embedding" or "head.weight" in plain layout; the embedding of a tied model is both."""
        tensor = self.spec.embedding if name == "embedding" else self.spec.head_weight
        return self._decoder.weights.held.matrix(tensor)

    @property
    def state_bytes(self) -> int:
        """See :class:`ipex_lookahead.engines.api.KeepsStates`."""
        return self._decoder.recurrent.nbytes

    @property
    def kernels(self) -> str:
        """See :class:`ipex_lookahead.engines.api.NamesKernels`: the kernels' sources, and what compiled them."""
        return f"{sources()} {self._decoder.device.facts()['driver']}"

    def describe(self) -> dict[str, Any]:
        """Return facts for ``info`` and reports."""
        decoder = self._decoder
        pages = decoder.pages
        facts = decoder.device.facts()
        experts = sum(len(mixture.experts) for mixture in self.spec.mixtures)
        core = decoder.weights.held.core
        on_cpu = {} if core is None else {"n_cpu_moe": decoder.cpu_moe, "device_bytes": decoder.weights.held.nbytes}
        return {
            "engine": self.name,
            "isa": f"opencl ({facts['spelling']})" if core is None else f"{core.isa}, opencl ({facts['spelling']})",
            "threads": facts["compute_units"],
            "low_bit": self.low_bit,
            "weight_bytes": decoder.weights.nbytes,
            "step_bytes": decoder.weights.nbytes - decoder.weights.idle_bytes,
            "expert_bytes": decoder.weights.expert_bytes,
            "kv_cache": self.kv_cache,
            "kv_bytes_per_token": sum(pages.sizes) // PAGE,
            **({"state_bytes": self.state_bytes} if self.state_bytes else {}),
            "max_context": self.max_context,
            "row_invariant": self.row_invariant,
            **({"experts": experts} if experts else {}),
            **on_cpu,
            **facts,
            **self.facts,
        }

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """See :func:`stored_weights`."""
        return self._decoder.weights.stored()


def _features(sequences: Sequence[StepRows]) -> tuple[int, ...]:
    """Return the hidden states that the drafting head of a step's sequences reads; () without a head.

    Raises InputError if two of them follow heads that read different ones.
    """
    read = {sequence.cache.head.layers for sequence in sequences if sequence.cache.head is not None}
    if len(read) > 1:
        raise InputError("sequences of a step follow drafting heads that read different layers; give each a step")
    return next(iter(read), ())
