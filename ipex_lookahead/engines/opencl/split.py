"""A model's first layers and its embedding on the CPU, the last layers and the lm_head on a device.

Both engines have the same bits, so any division of the layers has them. A step's rows cross once, as hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import Linear, ModelSpec
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.engines.api import Batch, OutputRequest, StepOutput
from ipex_lookahead.engines.load_weights import Progress, Read, reading, walk
from ipex_lookahead.engines.native.engine import NativeCache, NativeEngine
from ipex_lookahead.engines.opencl.cache import OneUser, OpenClCache
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.engine import OpenClEngine, check_wants
from ipex_lookahead.engines.opencl.layers import EMBEDDING
from ipex_lookahead.engines.opencl.supported import check_spec
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import EngineError, InputError
from ipex_lookahead.formats.base import PackedWeight

NONE = np.empty(0, np.int32)


class SplitCache(OneUser):
    """The KV cache of one sequence: each layer's part is on the layer's device. See ``engines.api.Cache``."""

    def __init__(self, cpu: NativeCache, device: OpenClCache) -> None:
        super().__init__()
        self.cpu, self.device = cpu, device

    @property
    def length(self) -> int:
        """The number of committed positions."""
        return self.device.length

    def keep(self, rows: Sequence[int]) -> None:
        """See ``OpenClCache.keep``."""
        with self.claim("keep"):
            before = self.device.length
            self.device.keep(rows)  # raises after a step that failed on the device
            try:
                self.cpu.keep(rows)
            except EngineError:
                self.device.crop(before)
                raise

    def crop(self, length: int) -> int:
        """See ``NativeCache.crop``."""
        with self.claim("crop"):
            return self.device.crop(self.cpu.crop(length))  # the core may crop to a shorter length

    def fork(self) -> SplitCache:
        """Return a second sequence with the same committed prefix."""
        with self.claim("fork"):
            return SplitCache(self.cpu.fork(), self.device.fork())


class SplitEngine:
    """A decoder with its last layers on an OpenCL device. Made by ``SplitEngine.load``.

    Args:
        spec: the whole model.
        cpu: the embedding and the first layers.
        device: the other layers and the lm_head.
    """

    name = "opencl"
    row_invariant = True
    supports_tree = True

    def __init__(self, spec: ModelSpec, cpu: NativeEngine, device: OpenClEngine) -> None:
        self._cpu, self._device = cpu, device
        self._on_cpu = len(cpu.spec.layers)
        self.spec = spec
        self.low_bit, self.kv_cache = device.low_bit, device.kv_cache
        self.vocab_size, self.max_context = spec.vocab, spec.max_context
        self.facts: dict[str, Any] = {}

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        plan: WeightPlan,
        device: Device,
        layers: int,
        *,
        threads: int | None = None,
        kv_cache: str = "fp16",
        progress: Progress | None = None,
    ) -> SplitEngine:
        """A checkpoint with its last ``layers`` layers on the device. Raises as ``OpenClEngine.load``."""
        below, above = _parts(spec, layers)
        tensors = [tensor for _, tensor in (*walk(below), *walk(above, EMBEDDING))]
        with reading(checkpoint, spec, plan, tensors, threads, progress) as read:
            return cls.build(spec, plan.label, read, device, layers, kv_cache, threads)

    @classmethod
    def build(
        cls,
        spec: ModelSpec,
        low_bit: str,
        read: Read,
        device: Device,
        layers: int,
        kv_cache: str = "fp16",
        threads: int | None = None,
    ) -> SplitEngine:
        """See ``OpenClEngine.build``; the last ``layers`` layers, at least one and not all, are on the device."""
        check_spec(spec)
        below, above = _parts(spec, layers)
        cpu = NativeEngine.build(below, low_bit, read, threads=threads, kv_cache=kv_cache)
        return cls(spec, cpu, OpenClEngine.build(above, low_bit, read, device, kv_cache, threads, embeds=False))

    def new_cache(self) -> SplitCache:
        """An empty sequence."""
        return SplitCache(self._cpu.new_cache(), self._device.new_cache())

    def forward(self, batch: Batch) -> StepOutput:
        """Run the layers on the CPU, then those on the device. See ``engines.api.Engine``."""
        check_wants(batch.wants)
        caches = _own(batch.caches)
        with ExitStack() as claims:
            for cache in {id(cache): cache for cache in caches}.values():  # the same one twice is refused by name below
                claims.enter_context(cache.claim("the step"))
            wants = OutputRequest(NONE, hidden=(self._on_cpu,))
            below = self._cpu.forward(replace(batch, caches=[cache.cpu for cache in caches], wants=wants))
            assert below.hidden is not None  # requested above
            above = replace(batch, caches=[cache.device for cache in caches])
            output = self._device.forward(above, below.hidden[self._on_cpu])
        output.experts += below.experts
        return output

    @property
    def kernels(self) -> str:
        """See :class:`ipex_lookahead.engines.api.NamesKernels`."""
        return f"{self._cpu.kernels} {self._device.kernels}"

    def describe(self) -> dict[str, Any]:
        """Return facts for ``info`` and reports: sums over both parts, and the division of the layers."""
        cpu, device = self._cpu.describe(), self._device.describe()
        sums = ("weight_bytes", "step_bytes", "kv_bytes_per_token")
        experts = cpu.get("experts", 0) + device.get("experts", 0)
        return {
            **device,
            **{name: cpu[name] + device[name] for name in sums},
            "isa": f"{cpu['isa']}, {device['isa']}",
            "threads": cpu["threads"],
            "step_bytes": cpu["step_bytes"] + device["step_bytes"] - self._cpu.embedding_bytes,
            "expert_bytes": max(cpu["expert_bytes"], device["expert_bytes"]),
            "gpu_layers": len(self.spec.layers) - self._on_cpu,
            "device_bytes": device["weight_bytes"],
            **({"experts": experts} if experts else {}),
            **self.facts,
        }

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """See :func:`stored_weights`."""
        norm, embedding = self.spec.final_norm.weight.name, self.spec.embedding.name
        yield from ((name, weight) for name, weight in self._cpu.weights() if name != norm)
        yield from ((name, weight) for name, weight in self._device.weights() if name != embedding)


def _parts(spec: ModelSpec, layers: int) -> tuple[ModelSpec, ModelSpec]:
    """Return the part of the model on the CPU, and the part with the last ``layers`` layers.

    Both have an lm_head, as every model does. The CPU's is the embedding, and no row of its output is requested.
    """
    first = len(spec.layers) - layers
    head = Linear(spec.embedding) if spec.head is None else spec.head
    return replace(spec, layers=spec.layers[:first], head=None), replace(spec, layers=spec.layers[first:], head=head)


def _own(caches: Any) -> list[SplitCache]:
    try:
        listed = list(caches)
    except TypeError as error:
        raise InputError(f"caches are a list: {error}") from None
    for cache in listed:
        if not isinstance(cache, SplitCache):
            raise InputError(f"a model on two devices needs its own caches, got {type(cache).__name__}")
    return listed
