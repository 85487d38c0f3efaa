"""A model's first layers and its embedding on the CPU, the last layers and the lm_head on a device.

Both engines have the same bits, so any division of the layers has them. A step's rows cross once, as hidden states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ipex_lookahead.architectures.spec import Attention, Block, Linear, ModelSpec
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.engines.api import Batch, OutputRequest, StepOutput, refuse_images
from ipex_lookahead.engines.cache_images import Bytes, ImageReader, in_order, joined, layout_of
from ipex_lookahead.engines.load_weights import Progress, Read, reading, walk
from ipex_lookahead.engines.native.engine import NativeCache, NativeEngine
from ipex_lookahead.engines.native.linear import plain
from ipex_lookahead.engines.opencl.cache import OneUser, OpenClCache
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.engine import OpenClEngine, check_wants
from ipex_lookahead.engines.opencl.layers import EMBEDDING
from ipex_lookahead.engines.opencl.supported import check_spec, may_divide
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import EngineError, InputError, arg
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
            length = self.cpu.crop(length)
            while (reached := self.device.crop(length)) < length:  # each may crop to a shorter length
                length = self.cpu.crop(reached)
            return length

    @property
    def state_bytes(self) -> int:
        """See ``engines.api.Checkpointed``."""
        with self.claim("state_bytes"):
            return self.cpu.state_bytes + self.device.state_bytes

    def checkpoint(self) -> None:
        """See ``NativeCache.checkpoint``."""
        with self.claim("checkpoint"):
            self.cpu.checkpoint()
            self.device.checkpoint()

    def export_pages(self, first: int, last: int) -> Bytes:
        """See ``engines.api.ExportsCache``: the number of bytes of the CPU's layers, these, and the device's."""
        with self.claim("export_pages"):
            cpu = self.cpu.export_pages(first, last)
            return joined(len(cpu), cpu, self.device.export_pages(first, last))

    def export_state(self) -> Bytes:
        """See ``engines.api.ExportsCache``; divided as pages are."""
        with self.claim("export_state"):
            cpu = self.cpu.export_state()
            return joined(len(cpu), cpu, self.device.export_state())

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
    warms_up: Literal[True] = True
    """See :class:`ipex_lookahead.engines.api.WarmsUp`."""

    def __init__(self, spec: ModelSpec, cpu: NativeEngine, device: OpenClEngine) -> None:
        self._cpu, self._device = cpu, device
        self._on_cpu = len(cpu.spec.layers)
        self.spec = spec
        self.low_bit, self.kv_cache = device.low_bit, device.kv_cache
        self.vocab_size, self.max_context = spec.vocab, spec.max_context
        self.facts: dict[str, Any] = {}
        self.head: Any = None

    @property
    def on_cpu(self) -> int:
        """The number of layers on the CPU."""
        return self._on_cpu

    @property
    def on_device(self) -> OpenClEngine:
        """The part on the device."""
        return self._device

    def weight(self, name: str) -> PackedWeight:
        """See ``OpenClEngine.weight``."""
        return plain(self._cpu.decoder.export_matrix(name)) if name == "embedding" else self._device.weight(name)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        plan: WeightPlan,
        device: Device,
        layers: int,
        *,
        cpu_moe: int = 0,
        threads: int | None = None,
        kv_cache: str = "fp16",
        progress: Progress | None = None,
    ) -> SplitEngine:
        """A checkpoint with its last ``layers`` layers on the device. Raises as ``OpenClEngine.load``.

        ``cpu_moe``: number of the first of these with their routed experts on the CPU.
        """
        below, above = _parts(spec, layers)
        tensors = [tensor for _, tensor in (*walk(below), *walk(above, EMBEDDING))]
        with reading(checkpoint, spec, plan, tensors, threads, progress) as read:
            return cls.build(spec, plan.label, read, device, layers, kv_cache, threads, cpu_moe)

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
        cpu_moe: int = 0,
    ) -> SplitEngine:
        """See ``OpenClEngine.build``; the last ``layers`` layers, at least one and not all, are on the device."""
        check_spec(spec)
        below, above = _parts(spec, layers)
        cpu = NativeEngine.build(below, low_bit, read, threads=threads, kv_cache=kv_cache)
        there = OpenClEngine.build(above, low_bit, read, device, kv_cache, threads, embeds=False, cpu_moe=cpu_moe)
        return cls(spec, cpu, there)

    def new_cache(self) -> SplitCache:
        """An empty sequence."""
        return SplitCache(self._cpu.new_cache(), self._device.new_cache())

    @property
    def cache_layout(self) -> str:
        """See ``engines.api.ImportsCache``."""
        return layout_of(f"{self.name}, {self._on_cpu} layers on the CPU", self.spec, self.kv_cache, self.head)

    def import_cache(self, length: int, pages: Iterable[tuple[int, int, Bytes]], state: Bytes) -> SplitCache:
        """See ``engines.api.ImportsCache``."""
        cache = self.new_cache()
        if self.head is not None:
            self.head.follow(cache)
        for first, last, data in in_order(length, pages, self.max_context):
            image = ImageReader(data)
            cache.cpu.import_pages(first, last, image.take((image.number(0, image.left, "size"),)))
            cache.device.import_pages(first, last, image)
        image = ImageReader(state)
        cache.cpu.import_state(length, image.take((image.number(0, image.left, "size"),)))
        cache.device.import_state(length, image)
        return cache

    def forward(self, batch: Batch) -> StepOutput:
        """Run the layers on the CPU, then those on the device. See ``engines.api.Engine``."""
        refuse_images(self.name, batch)
        wants, first = batch.wants, self._on_cpu
        check_wants(wants, len(self.spec.layers))
        caches = _own(batch.caches)
        with ExitStack() as claims:
            for cache in {id(cache): cache for cache in caches}.values():  # the same one twice is refused by name below
                claims.enter_context(cache.claim("the step"))
            on_cpu = {layer for layer in wants.hidden if 0 <= layer < first}
            requested = OutputRequest(NONE, hidden=(*on_cpu, first))
            below = self._cpu.forward(replace(batch, caches=[cache.cpu for cache in caches], wants=requested))
            assert below.hidden is not None  # requested above
            others = {layer: layer - first if layer >= 0 else layer for layer in wants.hidden if layer not in on_cpu}
            own = replace(wants, hidden=tuple(others.values()))
            above = replace(batch, caches=[cache.device for cache in caches], wants=own)
            output = self._device.forward(above, below.hidden[first])
        output.experts += below.experts
        if wants.hidden:
            rows = slice(None) if wants.hidden_rows is None else wants.hidden_rows
            found = {layer: below.hidden[layer][rows] for layer in on_cpu}
            made = output.hidden or {}
            output.hidden = {**found, **{layer: made[number] for layer, number in others.items()}}
        return output

    @property
    def state_bytes(self) -> int:
        """See :class:`ipex_lookahead.engines.api.KeepsStates`."""
        return self._cpu.state_bytes + self._device.state_bytes

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
            **({"state_bytes": self.state_bytes} if self.state_bytes else {}),
            "isa": f"{cpu['isa']}, {device['isa']}",
            "threads": cpu["threads"],
            "step_bytes": cpu["step_bytes"] + device["step_bytes"] - self._cpu.embedding_bytes,
            "expert_bytes": max(cpu["expert_bytes"], device["expert_bytes"]),
            "gpu_layers": len(self.spec.layers) - self._on_cpu,
            "device_bytes": device.get("device_bytes", device["weight_bytes"]),
            **({"n_cpu_moe": self._on_cpu + device["n_cpu_moe"]} if "n_cpu_moe" in device else {}),
            **({"experts": experts} if experts else {}),
            **self.facts,
        }

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """See :func:`stored_weights`."""
        norm, embedding = self.spec.final_norm, self.spec.embedding.name
        twice = {norm.weight.name} if norm.bias is None else {norm.weight.name, norm.bias.name}
        yield from ((name, weight) for name, weight in self._cpu.weights() if name not in twice)
        yield from ((name, weight) for name, weight in self._device.weights() if name != embedding)


def _parts(spec: ModelSpec, layers: int) -> tuple[ModelSpec, ModelSpec]:
    """Return the part of the model on the CPU, and the part with the last ``layers`` layers.

    Both have an lm_head, as every model does. The CPU's is the embedding, and no row of its output is requested. Raises
    InputError for a division through layers that share more than hidden states.
    """
    if not may_divide(spec, layers):
        allowed = [count for count in range(1, len(spec.layers) + 1) if may_divide(spec, count)]
        raise InputError(
            f"{arg('gpu_layers', layers)}: layers of {spec.model_type} read keys, values or inputs of earlier layers,"
            f" which must be on the device too; allowed are {', '.join(map(str, allowed))}"
        )
    first = len(spec.layers) - layers
    head = Linear(spec.embedding) if spec.head is None else spec.head
    above = tuple(_renumbered(block, first) for block in spec.layers[first:])
    return replace(spec, layers=spec.layers[:first], head=None), replace(spec, layers=above, head=head)


def _renumbered(block: Block, first: int) -> Block:
    """Return a block of the part that begins with layer ``first``."""
    mixer = block.mixer
    if not isinstance(mixer, Attention) or mixer.shared is None:
        return block
    return replace(block, mixer=replace(mixer, shared=mixer.shared - first))


def _own(caches: Any) -> list[SplitCache]:
    try:
        listed = list(caches)
    except TypeError as error:
        raise InputError(f"caches are a list: {error}") from None
    for cache in listed:
        if not isinstance(cache, SplitCache):
            raise InputError(f"a model on two devices needs its own caches, got {type(cache).__name__}")
    return listed
