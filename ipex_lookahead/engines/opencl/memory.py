"""The device memory that a model needs, computed from its description before any weight is read.

If not all layers fit, the last ones and the lm_head are on the device, the others and the embedding on the CPU
(``split.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ipex_lookahead.architectures.spec import Linear, ModelSpec, Tensor, named_tensors
from ipex_lookahead.checkpoints.base import Checkpoint, TensorInfo
from ipex_lookahead.engines.opencl.cache import PAGE, page_bytes
from ipex_lookahead.engines.opencl.device import LANES, Device
from ipex_lookahead.engines.opencl.linear import stream_bytes
from ipex_lookahead.engines.opencl.scratch import RopeTable, Scratch
from ipex_lookahead.engines.opencl.step import BLOCK, SPLIT_ROWS
from ipex_lookahead.engines.opencl.supported import attention_of
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.engines.weights import PlannedWeights, WeightPlan
from ipex_lookahead.errors import InputError, OutOfMemoryError, arg

log = logging.getLogger("ipex_lookahead")

SHARE = 0.9
"""The fraction of a device's memory that a model may use: the driver and the display need some of it."""
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
        scratch: buffers of a step.
        largest: the largest buffer of weights.
        widest: name of the weight in the largest buffer.
    """

    weights: int
    keys: int
    scratch: int
    largest: int
    widest: str

    @property
    def total(self) -> int:
        """Bytes in total."""
        return self.weights + self.keys + self.scratch


def _buffers(tensor: Tensor, formats: Formats) -> tuple[int, int]:
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


class _Ledger:
    """A stand-in for a device that counts the bytes of allocations."""

    def __init__(self) -> None:
        self.nbytes = 0

    def empty(self, nbytes: int) -> None:
        self.nbytes += max(int(nbytes), 4)

    def upload(self, array: Any) -> None:
        self.nbytes += array.nbytes


class Measured:
    """The memory that a model needs, by the number of its last layers that are on the device.

    Args:
        spec: the model.
        formats: returns the format that a matrix will have.
        kv_cache: "fp16" or "int8".
        positions: number of positions in the KV cache.
    """

    def __init__(self, spec: ModelSpec, formats: Formats, kv_cache: str, positions: int) -> None:
        self.spec, self.positions = spec, positions
        self._formats, self._kv_cache = formats, kv_cache
        self._layers = [self._part(block) for block in spec.layers]

    def need(self, layers: int) -> Need:
        """Return the need with the last ``layers`` layers (at least 1) on the device; all include the embedding."""
        spec, pages, whole = self.spec, -(-self.positions // PAGE), layers == len(self.spec.layers)
        head = self._part(Linear(spec.embedding) if spec.head is None else spec.head)
        parts = [*self._layers[-layers:], self._part(spec.final_norm)]
        if whole:
            parts.append(head if spec.tied else self._part(spec.embedding))
        _, largest, widest = max(parts, key=lambda part: part[1])
        if not whole or not spec.tied:
            parts.append(head)  # which may be in several buffers
        attention = attention_of(spec.layers[0])
        keys = layers * pages * page_bytes(attention.kv_heads, attention.head_dim, self._kv_cache)
        return Need(sum(part[0] for part in parts), keys, self._scratch(layers), largest, widest)

    def _part(self, part: Any) -> tuple[int, int, str]:
        """Return the bytes of a part of the model, its largest buffer, and the weight in that buffer."""
        found = [(*_buffers(tensor, self._formats), tensor.name) for _, tensor in named_tensors(part)]
        _, largest, widest = max(found, key=lambda one: one[1])
        return sum(one[0] for one in found) + _biases(part), largest, widest

    def _scratch(self, layers: int) -> int:
        """Return the bytes for a prefill chunk and a decoding step at the last position, and for tables of ropes."""
        spec, ledger = replace(self.spec, layers=self.spec.layers[-layers:]), _Ledger()
        device: Any = ledger
        partials = max(PREFILL_ROWS, SPLIT_ROWS * -(-self.positions // BLOCK))
        Scratch(device, spec, PREFILL_ROWS, WANTED, partials, 1, False)
        for rope in {id(one): one for block in spec.layers if (one := attention_of(block).rope) is not None}.values():
            RopeTable(device, rope).reserve(self.positions, spec.max_context)
        return ledger.nbytes


def measured(
    checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan, kv_cache: str, positions: int | None
) -> Measured:
    """Return the memory that a checkpoint's model needs, for ``positions`` positions; None: at most ``POSITIONS``."""
    planned = PlannedWeights(checkpoint, spec, plan)

    def formats(tensor: Tensor) -> TensorInfo:
        return max(planned.choices(tensor), key=lambda one: _buffers(tensor, lambda _: one)[0])

    return Measured(spec, formats, kv_cache, positions or min(spec.max_context, POSITIONS))


def room(device: Device) -> int:
    """Return the bytes that a model may take on a device: its share minus the buffers in use."""
    return int(SHARE * device.memory) - device.objects.nbytes


def layers_that_fit(device: Device, model: Measured) -> int:
    """Return the number of last layers that fit on a device."""
    free, count = room(device), len(model.spec.layers)

    def fits(layers: int) -> bool:
        need = model.need(layers)
        return need.total <= free and need.largest <= device.largest_buffer

    return next((layers for layers in range(count, 0, -1) if fits(layers)), 0)


def choose_layers(device: Device, model: Measured, wanted: int | None) -> int:
    """Return the number of last layers to put on the device.

    Args:
        device: the device.
        model: the memory that the model needs.
        wanted: the requested number, at most all layers are used; None: the layers that fit, with a warning if these
            are not all.

    Raises:
        InputError: fewer than one layer is requested.
        OutOfMemoryError: the requested layers do not fit. The message has the need, the memory and what fits instead.
    """
    count = len(model.spec.layers)
    if wanted is not None and wanted < 1:
        raise InputError(
            f"{arg('gpu_layers', wanted)}: at least one layer is on the device, and a number beyond the model's {count}"
            " means all",
            hint=f"{arg('engine', 'native')} runs all layers on the CPU",
        )
    most = layers_that_fit(device, model)
    layers = most if wanted is None else min(wanted, count)
    if layers < 1 or layers > most:
        raise OutOfMemoryError(_too_little(device, model, layers or 1), hint=_instead(model, most))
    need = model.need(layers)
    if wanted is None and layers < count:
        log.warning("%s: %d of its %d layers and the lm_head are put there, the others run on the CPU",
                    _too_little(device, model, count), layers, count)  # fmt: skip
    else:
        log.info("%s: %s of %s", device.name, _said(model, need), _gb(room(device)))
    return layers


def check_room(device: Device, nbytes: int) -> None:
    """Raise OutOfMemoryError if ``nbytes`` bytes of weights do not fit on a device."""
    if nbytes > (free := room(device)):
        raise OutOfMemoryError(
            f"the model's weights are {_gb(nbytes)}, and the device {device.name} has {_gb(max(free, 0))} for them",
            hint=f"load it with {arg('engine', 'opencl')}, which puts the layers that fit there",
        )


def _too_little(device: Device, model: Measured, layers: int) -> str:
    need, count = model.need(layers), len(model.spec.layers)
    what = "the model" if layers == count else f"{layers} of the model's {count} layers"
    if need.total <= room(device):
        return (
            f"{need.widest} needs a buffer of {_gb(need.largest)}, and the largest that the device {device.name} has is"
            f" {_gb(device.largest_buffer)}"
        )
    needs = "needs" if layers == count else "need"
    return f"{what} {needs} {_said(model, need)}, and the device {device.name} has {_gb(max(room(device), 0))} for it"


def _said(model: Measured, need: Need) -> str:
    return (
        f"{_gb(need.total)} ({_gb(need.weights)} of weights, {_gb(need.keys)} of keys and values for"
        f" {model.positions:,} positions, {_gb(need.scratch)} to work in)"
    )


def _instead(model: Measured, most: int) -> str:
    less = f"{arg('kv_cache', 'int8')}, a shorter context or a format of fewer bits"
    if most == 0:
        return f"not one layer fits: use {arg('engine', 'native')}, or {less}"
    fits = "all" if most == len(model.spec.layers) else f"{most} of {len(model.spec.layers)}"
    return f"{arg('gpu_layers', most)} fits ({fits} layers; the others run on the CPU); or use {less}"


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
