"""The device memory that a model needs, computed from its description before any weight is read.

``placement.py`` chooses what is on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ipex_lookahead.architectures.spec import Block, Experts, Linear, ModelSpec, Rope, Tensor, named_tensors
from ipex_lookahead.checkpoints.base import Checkpoint, TensorInfo
from ipex_lookahead.engines.cache_images import PAGE
from ipex_lookahead.engines.opencl.cache import Layout
from ipex_lookahead.engines.opencl.device import LANES
from ipex_lookahead.engines.opencl.linear import stream_bytes
from ipex_lookahead.engines.opencl.operations import operation_of
from ipex_lookahead.engines.opencl.scratch import RopeTable, Scratch, ropes_of
from ipex_lookahead.engines.opencl.states import StateLayout
from ipex_lookahead.engines.opencl.step import BLOCK, SPLIT_ROWS
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.engines.weights import PlannedWeights, WeightPlan

POSITIONS = 4096
"""Default number of positions that memory is reserved for; the KV cache grows beyond it on demand."""
WANTED = 64
"""Rows of a step with logits."""

Formats = Callable[[Tensor], TensorInfo]


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of a device's memory.

    Attributes:
        weights: all weights.
        keys: the KV cache.
        states: the recurrent states of a sequence.
        scratch: buffers of a step.
        largest: the largest buffer of weights.
        widest: name of the weight in the largest buffer.
        head: a drafting head.
    """

    weights: int
    keys: int
    states: int
    scratch: int
    largest: int
    widest: str
    head: int = 0

    @property
    def total(self) -> int:
        """Bytes in total."""
        return self.weights + self.keys + self.states + self.scratch + self.head


def buffers_of(tensor: Tensor, formats: Formats) -> tuple[int, int]:
    """Return the bytes of a weight on the device, and of the largest of its buffers."""
    if not tensor.is_matrix:
        return 4 * tensor.shape[0], 4 * tensor.shape[0]
    info = formats(tensor)
    streams = stream_bytes(info.format, tensor.shape, info.group_size)
    return sum(streams), max(streams)


def _biases(part: Any) -> int:
    """Return the bytes of the second copy of biases, in the tiles of their matrices."""
    if isinstance(part, Linear):
        return 0 if part.bias is None else 4 * -(-part.bias.shape[0] // LANES) * LANES
    if isinstance(part, tuple):
        return sum(map(_biases, part))
    return sum(_biases(getattr(part, name)) for name in getattr(part, "__dataclass_fields__", ()))


def _without_experts(block: Block) -> Block:
    """Return a block without its routed experts."""
    if not isinstance(block.feed_forward, Experts):
        return block
    return replace(block, feed_forward=replace(block.feed_forward, experts=()))


class Ledger:
    """A stand-in for a device that counts the bytes of allocations."""

    def __init__(self) -> None:
        self.nbytes = 0

    def empty(self, nbytes: int) -> None:
        self.nbytes += max(int(nbytes), 4)

    def upload(self, array: Any) -> None:
        self.nbytes += array.nbytes


class Measured:
    """The memory that a model needs, by the number of its last layers that are on the device.

    The routed experts of the first layers may be on the CPU.

    Args:
        spec: the model.
        formats: returns the format that a matrix will have.
        kv_cache: "fp16" or "int8".
        positions: number of positions in the KV cache.
        head: bytes of a drafting head.
    """

    def __init__(self, spec: ModelSpec, formats: Formats, kv_cache: str, positions: int, head: int = 0) -> None:
        self.spec, self.positions, self._head = spec, positions, head
        self._formats, self._kv_cache = formats, kv_cache
        self._tables: dict[int, int] = {}
        self._layers = [self._part(block) for block in spec.layers]
        self._rest = [self._part(_without_experts(block)) for block in spec.layers]
        mixtures = [number for number, block in enumerate(spec.layers, 1) if isinstance(block.feed_forward, Experts)]
        self.last_mixture = max(mixtures, default=0)
        """Number of layers up to the last one with a mixture of experts; 0: no layer has one."""

    def need(self, layers: int, cpu_moe: int = 0) -> Need:
        """Return the need with the last ``layers`` layers (at least 1) on the device; all include the embedding.

        ``cpu_moe``: number of the model's first layers with their routed experts on the CPU.
        """
        spec, pages, whole = self.spec, -(-self.positions // PAGE), layers == len(self.spec.layers)
        head = self._part(Linear(spec.embedding) if spec.head is None else spec.head)
        parts = [*[*self._rest[:cpu_moe], *self._layers[cpu_moe:]][-layers:], self._part(spec.final_norm)]
        if whole:
            parts.append(head if spec.tied else self._part(spec.embedding))
        if (inputs := spec.per_layer) is not None:
            parts.append(self._part((inputs.projection, inputs.norm)))  # the table stays on the CPU
        _, largest, widest = max(parts, key=lambda part: part[1])
        if not whole or not spec.tied:
            parts.append(head)  # which may be in several buffers
        mixers = [block.mixer for block in spec.layers[-layers:] if block.mixer is not None]
        layouts = [operation_of(mixer).layout(mixer) for mixer in mixers]
        keys = pages * sum(one.page_bytes(self._kv_cache) for one in layouts if isinstance(one, Layout))
        states = sum(one.step_bytes for one in layouts if isinstance(one, StateLayout))
        return Need(
            sum(part[0] for part in parts), keys, states, self._scratch(layers, cpu_moe), largest, widest, self._head
        )

    def cpu_bytes(self, layers: int, cpu_moe: int = 0) -> int:
        """Return the bytes of weights that a step of one row reads on the CPU; arguments as for ``need``."""
        first, total = len(self.spec.layers) - layers, 0
        for number, block in enumerate(self.spec.layers):
            rest = self._rest[number][0]
            if number < first:
                total += rest
            if number < max(first, cpu_moe) and isinstance(mixture := block.feed_forward, Experts):
                total += (self._layers[number][0] - rest) * mixture.used // len(mixture.experts)
        return total

    def _part(self, part: Any) -> tuple[int, int, str]:
        """Return the bytes of a part of the model, its largest buffer, and the weight in that buffer."""
        found = [(*buffers_of(tensor, self._formats), tensor.name) for _, tensor in named_tensors(part)]
        _, largest, widest = max(found, key=lambda one: one[1])
        return sum(one[0] for one in found) + _biases(part), largest, widest

    def _scratch(self, layers: int, cpu_moe: int) -> int:
        """Return the bytes for a prefill chunk and a decoding step at the last position, and for tables of ropes."""
        spec, ledger = replace(self.spec, layers=self.spec.layers[-layers:]), Ledger()
        device: Any = ledger
        partials = max(PREFILL_ROWS, SPLIT_ROWS * -(-self.positions // BLOCK))
        Scratch(device, spec, PREFILL_ROWS, WANTED, partials, 1, max(cpu_moe - (len(self.spec.layers) - layers), 0))
        return ledger.nbytes + sum(map(self._table_bytes, ropes_of(spec)))

    def _table_bytes(self, rope: Rope) -> int:
        if id(rope) not in self._tables:
            ledger = Ledger()
            device: Any = ledger
            RopeTable(device, rope).reserve(self.positions, self.spec.max_context)
            self._tables[id(rope)] = ledger.nbytes
        return self._tables[id(rope)]


def need_of_formats(checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan) -> Formats:
    """Return a function that returns the format a matrix will have, the largest one where values decide."""
    planned = PlannedWeights(checkpoint, spec, plan)

    def formats(tensor: Tensor) -> TensorInfo:
        return max(planned.choices(tensor), key=lambda one: buffers_of(tensor, lambda _: one)[0])

    return formats


def measured(
    checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan, kv_cache: str, positions: int | None, head: int = 0
) -> Measured:
    """Return the memory that a checkpoint's model needs.

    Args:
        checkpoint: the source.
        spec: the model.
        plan: the formats.
        kv_cache: "fp16" or "int8".
        positions: number of positions in the KV cache; None: at most ``POSITIONS``.
        head: bytes of a drafting head.
    """
    formats = need_of_formats(checkpoint, spec, plan)
    return Measured(spec, formats, kv_cache, positions or min(spec.max_context, POSITIONS), head)
