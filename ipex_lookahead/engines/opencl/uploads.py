"""Weights on their way to a device: matrices, stacks of experts, and vectors of a part of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import GatedMlp, Linear, Norm, Tensor, named_tensors
from ipex_lookahead.engines.load_weights import Order
from ipex_lookahead.engines.native.experts import RoutedExperts
from ipex_lookahead.engines.opencl.cache import Layout
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import LANES, Matrix, stream_bytes
from ipex_lookahead.engines.opencl.states import StateLayout
from ipex_lookahead.engines.weights import outputs_of, together
from ipex_lookahead.formats.base import PackedWeight

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stack:
    """The matrices of a mixture's experts, or of the heads of latent attention, in one format, concatenated.

    Attributes:
        matrix: the parts.
        places: buffer, int32 [experts]: the index of each expert's part, -1 for experts of other stacks.
        members: buffer, int32 [parts]: the expert of each part.
        key: format, group size and experts.
    """

    matrix: Matrix
    places: Any
    members: Any
    key: tuple[str, int, tuple[int, ...]]


@dataclass(slots=True)
class Held:
    """The weights on a device by their tensors' names, as they were uploaded; and the experts on the CPU.

    Attributes:
        matrices: the matrices that a weight is in, and the index of its part; the parts of an lm_head in pieces.
        vectors: buffers, float32.
        layouts: layouts of the pages of the layers with keys and values.
        pages: index of the pages of each of these layers, by the layer's index.
        states: layouts of the states of the recurrent layers.
        tables: matrices that stay on the CPU, of which a step reads some rows.
        core: the routed experts on the CPU; None: there are none.
        in_core: their tensors' names -> their names in the core.
    """

    matrices: dict[str, list[tuple[Matrix, int]]] = field(default_factory=dict)
    vectors: dict[str, Any] = field(default_factory=dict)
    layouts: list[Layout] = field(default_factory=list)
    pages: dict[int, int] = field(default_factory=dict)
    states: list[StateLayout] = field(default_factory=list)
    tables: dict[str, PackedWeight] = field(default_factory=dict)
    core: RoutedExperts | None = None
    in_core: dict[str, str] = field(default_factory=dict)

    def matrix(self, tensor: Tensor) -> PackedWeight:
        """Return a matrix in plain layout."""
        if tensor.name in self.tables:
            return self.tables[tensor.name]
        if self.core is not None and tensor.name in self.in_core:
            return self.core.matrix(self.in_core[tensor.name])
        return together([one.weights()[part] for one, part in self.matrices[tensor.name]])

    def vector(self, tensor: Tensor, device: Device) -> Floats:
        """Return a vector."""
        if self.core is not None and tensor.name in self.in_core:
            return self.core.vector(self.in_core[tensor.name])
        return device.read(self.vectors[tensor.name], tensor.shape, np.float32)

    @property
    def nbytes(self) -> int:
        """The bytes of all weights on the device."""
        matrices = {id(one): one.nbytes for parts in self.matrices.values() for one, _ in parts}
        return sum(matrices.values()) + sum(int(buffer.size) for buffer in self.vectors.values())


class Uploads:
    """Uploads the weights of a part of a model. Each is taken once.

    Args:
        device: where they go.
        held: receives them.
        read: the weights of the part by their tensors' names. Taken weights are removed.
        orders: the orders of inputs by the field of the first linear layer that reads them, such as "down".
        threads: number of CPU threads that pack the weights; None: one per core.
        layer: index of the part's layer.
    """

    def __init__(
        self,
        device: Device,
        held: Held,
        read: dict[str, PackedWeight],
        orders: dict[str, Order] | None = None,
        threads: int | None = None,
        layer: int = 0,
    ) -> None:
        self._device, self._held, self._read, self._threads, self._layer = device, held, read, threads, layer
        self._orders = {name: device.upload(order) for name, order in (orders or {}).items()}

    def matrix(self, linears: Sequence[Linear]) -> Matrix:
        """Upload linear layers of one format and input as one matrix."""
        weights = [self._read.pop(linear.weight.name) for linear in linears]
        made = Matrix.upload(self._device, weights, [self._bias(linear) for linear in linears], self._threads)
        for part, linear in enumerate(linears):
            self._held.matrices[linear.weight.name] = [(made, part)]
        return made

    def alike(self, linears: Sequence[Linear]) -> bool:
        """Return True if linear layers have one format and fit in one buffer."""
        weights = [self._read[linear.weight.name] for linear in linears]
        return len({(one.format, one.group_size) for one in weights}) == 1 and self._fit(weights) == len(weights)

    def stacks(self, linears: Sequence[Linear]) -> list[Stack]:
        """Upload the same layer of each expert: a stack for each format, in order of appearance, within a buffer."""
        weights = [self._read[linear.weight.name] for linear in linears]
        groups: dict[tuple[str, int], list[int]] = {}
        for i, weight in enumerate(weights):
            groups.setdefault((weight.format, weight.group_size), []).append(i)
        made = []
        for key, alike in groups.items():
            most = self._fit([weights[i] for i in alike])
            for first in range(0, len(alike), most):
                group = alike[first : first + most]
                places = np.full(len(linears), -1, np.int32)
                places[group] = np.arange(len(group))
                matrix, members = self.matrix([linears[i] for i in group]), np.array(group, np.int32)
                buffers = self._device.upload(places), self._device.upload(members)
                made.append(Stack(matrix, *buffers, (*key, tuple(group))))
        return made

    def to_core(self, experts: Sequence[GatedMlp]) -> tuple[RoutedExperts, int]:
        """Hand a mixture's experts to the core. Return the core's experts, and the bytes of these."""
        core, nbytes = self._held.core, 0
        assert core is not None  # where experts are on the CPU
        for name, tensor in named_tensors(tuple(experts), f"layers.{self._layer}.feed_forward.experts"):
            weight = self._read.pop(tensor.name)
            core.set(name, weight)
            self._held.in_core[tensor.name] = name
            nbytes += weight.nbytes if tensor.is_matrix else 0
        return core, nbytes

    def in_pieces(self, linear: Linear, tied: bool) -> list[Matrix]:
        """Upload the lm_head in one or several matrices, each small enough for a buffer; a tied one in one matrix."""
        weight, bias = self._read.pop(linear.weight.name), self._bias(linear)
        tiles = -(-weight.shape[0] // LANES)
        of_a_tile = max(stream_bytes(weight.format, weight.shape, weight.group_size)) // tiles
        step = LANES * (tiles if tied else min(tiles, max(self._device.largest_buffer // of_a_tile, 1)))
        pieces = [slice(first, first + step) for first in range(0, weight.shape[0], step)]
        made = [
            Matrix.upload(
                self._device, [outputs_of(weight, piece)], [None if bias is None else bias[piece]], self._threads
            )
            for piece in pieces
        ]
        self._held.matrices[linear.weight.name] = [(one, 0) for one in made]
        return made

    def vector(self, tensor: Tensor | None) -> Any:
        """Upload a vector, float32; None for None."""
        if tensor is None:
            return None
        values = np.ascontiguousarray(self._read.pop(tensor.name).codes)
        self._held.vectors[tensor.name] = self._device.upload(values)
        return self._held.vectors[tensor.name]

    def norm(self, norm: Norm | None) -> Any:
        """Upload a norm's weight; None for None."""
        return self.vector(None if norm is None else norm.weight)

    def bias(self, norm: Norm | None) -> Any:
        """Upload a layer norm's bias; None if there is none."""
        return self.vector(None if norm is None else norm.bias)

    def values(self, tensors: Sequence[Tensor]) -> Any:
        """Upload vectors, and return a buffer of all their values, float32."""
        values = [np.asarray(self._read[one.name].codes, np.float32).reshape(-1) for one in tensors]
        for one in tensors:
            self.vector(one)
        return self._device.upload(np.concatenate(values))

    def table(self, tensor: Tensor) -> PackedWeight:
        """Keep a matrix on the CPU and return it."""
        self._held.tables[tensor.name] = self._read.pop(tensor.name)
        return self._held.tables[tensor.name]

    def order(self, name: str) -> Any:
        """Return the order, int32, of the inputs of a field's linear layer; None: the model's."""
        return self._orders.get(name)

    def pages(self, layout: Layout) -> int:
        """Return the index of the pages of the part's layer, which has keys and values."""
        self._held.layouts.append(layout)
        self._held.pages[self._layer] = len(self._held.layouts) - 1
        return self._held.pages[self._layer]

    def pages_of(self, layer: int) -> int:
        """Return the index of the pages of an earlier layer."""
        return self._held.pages[layer]

    def state(self, layout: StateLayout) -> int:
        """Return the index of the state of a recurrent layer."""
        self._held.states.append(layout)
        return len(self._held.states) - 1

    def _bias(self, linear: Linear) -> Floats | None:
        """Return a linear layer's bias for the matrix's tiles, and upload a second copy, which ``stored`` returns."""
        if linear.bias is None:
            return None
        values = np.asarray(self._read[linear.bias.name].codes, np.float32)
        self.vector(linear.bias)
        return values

    def _fit(self, weights: Sequence[PackedWeight]) -> int:
        """Return the number of weights (equal in format) that fit in a buffer; at least one."""
        largest = max(max(stream_bytes(one.format, one.shape, one.group_size)) for one in weights)
        return min(len(weights), max(self._device.largest_buffer // largest, 1))
