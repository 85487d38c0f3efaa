"""The OpenCL engine: Intel GPUs with nothing but the driver, and the native core's bits. Row-invariant, hence exact."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.engines.api import MOST_TOP, Batch, OutputRequest, StepOutput
from ipex_lookahead.engines.load_weights import Progress, Read, reading, walk, weights_of
from ipex_lookahead.engines.native.decoder import KV_CACHES
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.opencl.cache import OpenClCache
from ipex_lookahead.engines.opencl.decoder import Decoder
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.layers import Floats
from ipex_lookahead.engines.opencl.memory import check_room
from ipex_lookahead.engines.opencl.programs import sources
from ipex_lookahead.engines.opencl.step import plan
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import InputError, NonFiniteError, arg
from ipex_lookahead.formats.base import PackedWeight


def check_wants(wants: OutputRequest) -> None:
    """Raise InputError for outputs that the OpenCL engine does not return."""
    top = wants.top
    if not isinstance(top, (int, np.integer)) or not 0 <= top <= MOST_TOP:
        raise InputError(f"top is {top!r}; it must be from 0 to {MOST_TOP}")
    if wants.hidden or wants.timings:
        kind = "hidden states" if wants.hidden else "timings"
        raise InputError(f"the OpenCL engine returns no {kind}", hint=f"use {arg('engine', 'native')}")


class OpenClEngine:
    """A decoder on an OpenCL device. Made by ``OpenClEngine.load``."""

    name = "opencl"
    row_invariant = True
    supports_tree = True

    def __init__(self, decoder: Decoder, low_bit: str, kv_cache: str = "fp16") -> None:
        self._decoder = decoder
        self._lock = threading.Lock()
        self.spec: ModelSpec = decoder.spec
        self.low_bit = low_bit
        self.kv_cache = kv_cache
        self.vocab_size = self.spec.vocab
        self.max_context = self.spec.max_context
        self.facts: dict[str, Any] = {}

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        plan: WeightPlan,
        device: Device,
        *,
        threads: int | None = None,
        kv_cache: str = "fp16",
        progress: Progress | None = None,
    ) -> OpenClEngine:
        """Read, quantize, pack and upload the weights, one layer at a time.

        Raises:
            ModelFormatError: a tensor is missing, has another shape than the config implies, or has NaN or infinity.
            UnsupportedModelError: kernels do not support the model.
            EngineError: there is no compiled core, which packs weights, or the device lacks the memory.
        """
        tensors = (tensor for _, tensor in walk(spec))
        with reading(checkpoint, spec, plan, tensors, threads, progress) as read:
            return cls.build(spec, plan.label, read, device, kv_cache, threads)

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
        """
        if kv_cache not in KV_CACHES:
            raise InputError(argument="kv_cache", got=kv_cache, allowed=f"one of {', '.join(KV_CACHES)}")
        return cls(Decoder(device, spec, read, kv_cache, threads, embeds), low_bit, kv_cache)

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
        cache = OpenClCache(self._decoder.pages)
        if blank:
            cache.fill_blank(blank)
        return cache

    def forward(self, batch: Batch, hidden: Floats | None = None) -> StepOutput:
        """The whole decoder on the device: ids in, ids out. See ``engines.api.Engine.forward``.

        ``hidden``, float32 [rows, hidden size]: what the first layer reads, where the embedding is elsewhere.
        """
        check_wants(batch.wants)
        wants, top = batch.wants, int(batch.wants.top)
        with self._lock, ExitStack() as claims:
            checked = plan(batch, self._decoder.pages, self.vocab_size, self.max_context)
            for sequence in checked.sequences:
                claims.enter_context(sequence.cache.claim("the step"))
                sequence.cache.set_step([])  # should it fail half-way, nothing of the step before can be kept either
            ids, logits, experts = self._decoder.run(checked, max(top, 1), bool(wants.logits), hidden)
            if (ids < -1).any() or (ids[:, :1] < 0).any():
                raise NonFiniteError("the model's logits are not finite", hint="the checkpoint's weights are damaged")
            for sequence in checked.sequences:
                sequence.cache.set_step(sequence.parents)
        return StepOutput(ids[:, 0], logits, ids if top else None, experts)

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
        return {
            "engine": self.name,
            "isa": f"opencl ({facts['spelling']})",
            "threads": facts["compute_units"],
            "low_bit": self.low_bit,
            "weight_bytes": decoder.weights.nbytes,
            "step_bytes": decoder.weights.nbytes - decoder.weights.idle_bytes,
            "expert_bytes": decoder.weights.expert_bytes,
            "kv_cache": self.kv_cache,
            "kv_bytes_per_token": len(pages.buffers) * pages.bytes // 64,
            "max_context": self.max_context,
            "row_invariant": self.row_invariant,
            **({"experts": experts} if experts else {}),
            **facts,
            **self.facts,
        }

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """See :func:`stored_weights`."""
        return self._decoder.weights.stored()
