"""A model's weights on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Block, Experts, Linear, ModelSpec, Norm, Tensor
from ipex_lookahead.engines.load_weights import Order, Read, load_weights, stored_weights
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import LANES, Matrix, stream_bytes
from ipex_lookahead.engines.opencl.supported import attention_of, mlps_of
from ipex_lookahead.engines.weights import outputs_of, together
from ipex_lookahead.formats.base import PackedWeight

Floats = npt.NDArray[np.float32]

EMBEDDING = ("embedding",)
"""The tensor that a device leaves out where it does not embed tokens."""
BLOCK_NORMS = ("mixer_norm", "mixer_after", "feed_forward_norm", "feed_forward_after")


@dataclass(frozen=True, slots=True)
class Stack:
    """Concatenated matrices of one format: the matrix of an MLP, or those of a mixture's experts in that format.

    ``places``: buffer, int32 [experts]: the index of each expert's part, -1 for experts of other stacks; None without
    a mixture.
    """

    matrix: Matrix
    places: Any = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's weights.

    Attributes:
        block: its description.
        qkv: one matrix if the formats are equal, else three.
        o: the output projection of attention.
        router: the router of a mixture, in floats; None without a mixture.
        gate, up, down: one stack; of a mixture one for each format of its experts.
        paired: whether gate and up have equal formats, expert by expert.
        vectors: buffers of norms and sinks by name.
        orders: buffers, int32: orders of inputs, by the first matrix that reads them.
    """

    block: Block
    qkv: list[Matrix]
    o: Matrix
    router: Matrix | None
    gate: list[Stack]
    up: list[Stack]
    down: list[Stack]
    paired: bool
    vectors: dict[str, Any]
    orders: dict[str, Any]

    @property
    def mlp_bytes(self) -> int:
        """The bytes of all experts, or of the MLP."""
        return sum(stack.matrix.nbytes for stacks in (self.gate, self.up, self.down) for stack in stacks)


class Weights:
    """A model's weights on a device.

    Args:
        device: the device.
        spec: the model.
        read: returns a tensor's weight; see ``load_weights``.
        threads: number of CPU threads that pack the weights; None: one per core.
        embeds: whether the device embeds tokens. If not, it holds no embedding.

    Raises:
        EngineError: the device lacks the memory.
    """

    def __init__(
        self, device: Device, spec: ModelSpec, read: Read, threads: int | None = None, embeds: bool = True
    ) -> None:
        self.device, self.spec, self._threads = device, spec, threads
        self._skip = () if embeds else EMBEDDING
        self._matrices: dict[str, list[tuple[Matrix, int]]] = {}
        self._vectors: dict[str, Any] = {}
        self._orders: dict[str, Order] = {}
        self._read: dict[str, PackedWeight] = {}
        self.embedding: Matrix | None = None
        self.layers: list[Layer] = []
        for part, weights in groupby(load_weights(spec, read, self._orders, self._skip), lambda one: _part(one[0])):
            orders: dict[str, Order] = {}
            for name, tensor, weight in weights:
                self._read[tensor.name] = weight
                if name in self._orders:
                    orders[name.split(".")[-2]] = self._orders[name]
            if part == "final_norm":
                self.final_norm = self._norm(spec.final_norm)
            elif part == "head" or spec.tied and part == "embedding":
                self.head = self._in_pieces(Linear(spec.embedding) if spec.head is None else spec.head)
            elif part == "embedding":
                self.embedding = self._upload([Linear(spec.embedding)])
            else:
                self.layers.append(self._layer(spec.layers[len(self.layers)], orders))
            assert not self._read, self._read.keys()
        if spec.tied:
            (self.embedding,) = self.head

    # ---- upload, one part of the model at a time ---------------------------------------------------------------------

    def _layer(self, block: Block, orders: dict[str, Order]) -> Layer:
        own, mlps, mixture = attention_of(block), mlps_of(block), isinstance(block.feed_forward, Experts)
        assert own.k is not None  # as check_spec has seen
        assert own.v is not None
        heads = (own.q, own.k, own.v)
        weights = [self._read[linear.weight.name] for linear in heads]
        alike = len({(weight.format, weight.group_size) for weight in weights}) == 1 and self._fit(weights) == 3
        groups = [heads] if alike else [(one,) for one in heads]
        qkv, o = [self._upload(group) for group in groups], self._upload([own.o])
        router = self._upload([block.feed_forward.router]) if isinstance(block.feed_forward, Experts) else None
        gate, up, down = (
            self._stacks([getattr(mlp, name) for mlp in mlps], mixture) for name in ("gate", "up", "down")
        )
        vectors = {name: self._norm(getattr(block, name)) for name in BLOCK_NORMS}
        vectors |= {"q_norm": self._norm(own.q_norm), "k_norm": self._norm(own.k_norm), "sinks": self._put(own.sinks)}
        formats = [[self._format_of(getattr(mlp, name)) for mlp in mlps] for name in ("gate", "up")]
        on_device = {name: self.device.upload(order) for name, order in orders.items()}
        return Layer(block, qkv, o, router, gate, up, down, formats[0] == formats[1], vectors, on_device)

    def _in_pieces(self, linear: Linear) -> list[Matrix]:
        """Upload the lm_head in one or several matrices, each small enough for a buffer; a tied one in one matrix."""
        weight, bias = self._read.pop(linear.weight.name), self._bias(linear)
        tiles = -(-weight.shape[0] // LANES)
        of_a_tile = max(stream_bytes(weight.format, weight.shape, weight.group_size)) // tiles
        step = LANES * (tiles if self.spec.tied else min(tiles, max(self.device.largest_buffer // of_a_tile, 1)))
        pieces = [slice(first, first + step) for first in range(0, weight.shape[0], step)]
        made = [
            Matrix.upload(
                self.device, [outputs_of(weight, piece)], [None if bias is None else bias[piece]], self._threads
            )
            for piece in pieces
        ]
        self._matrices[linear.weight.name] = [(one, 0) for one in made]
        return made

    def _stacks(self, linears: Sequence[Linear], mixture: bool) -> list[Stack]:
        """Upload matrices in stacks of one format, in the order in which formats appear, each within a buffer."""
        weights = [self._read[linear.weight.name] for linear in linears]
        groups: dict[tuple[str, int], list[int]] = {}
        for i, weight in enumerate(weights):
            groups.setdefault((weight.format, weight.group_size), []).append(i)
        made = []
        for group in (part for alike in groups.values() for part in self._parts(alike, weights)):
            matrix = self._upload([linears[i] for i in group])
            places = np.full(len(linears), -1, np.int32)
            places[group] = np.arange(len(group))
            made.append(Stack(matrix, self.device.upload(places) if mixture else None))
        return made

    def _fit(self, weights: Sequence[PackedWeight]) -> int:
        """Return the number of weights (equal in size and format) that fit in a buffer; at least one."""
        largest = max(max(stream_bytes(one.format, one.shape, one.group_size)) for one in weights)
        return min(len(weights), max(self.device.largest_buffer // largest, 1))

    def _parts(self, group: list[int], weights: Sequence[PackedWeight]) -> list[list[int]]:
        most = self._fit([weights[i] for i in group])
        return [group[i : i + most] for i in range(0, len(group), most)]

    def _upload(self, linears: Sequence[Linear]) -> Matrix:
        weights = [self._read.pop(linear.weight.name) for linear in linears]
        made = Matrix.upload(self.device, weights, [self._bias(linear) for linear in linears], self._threads)
        for part, linear in enumerate(linears):
            self._matrices[linear.weight.name] = [(made, part)]
        return made

    def _bias(self, linear: Linear) -> Floats | None:
        """Return a linear layer's bias for the matrix's tiles, and upload a second copy, which ``stored`` returns."""
        if linear.bias is None:
            return None
        values = np.asarray(self._read[linear.bias.name].codes, np.float32)
        self._put(linear.bias)
        return values

    def _put(self, tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        self._vectors[tensor.name] = self.device.upload(np.ascontiguousarray(self._read.pop(tensor.name).codes))
        return self._vectors[tensor.name]

    def _norm(self, one: Norm | None) -> Any:
        return self._put(None if one is None else one.weight)

    def _format_of(self, linear: Linear) -> tuple[str, int]:
        ((made, _),) = self._matrices[linear.weight.name]
        return made.format, made.group_size

    # ---- download ----------------------------------------------------------------------------------------------------

    def stored(self) -> Iterator[tuple[str, PackedWeight]]:
        """See ``stored_weights``."""
        return stored_weights(self.spec, self._matrix, self._vector, self._orders, self._skip)

    def _matrix(self, _: str, tensor: Tensor) -> PackedWeight:
        return together([one.weights()[part] for one, part in self._matrices[tensor.name]])

    def _vector(self, _: str, tensor: Tensor) -> Floats:
        return self.device.read(self._vectors[tensor.name], tensor.shape, np.float32)

    @property
    def nbytes(self) -> int:
        """The bytes of all weights on the device."""
        matrices = {id(one): one.nbytes for parts in self._matrices.values() for one, _ in parts}
        return sum(matrices.values()) + sum(int(buffer.size) for buffer in self._vectors.values())

    @property
    def idle_bytes(self) -> int:
        """The bytes of weights that a step of one row does not read: an untied embedding, and idle experts."""
        idle = 0 if self.spec.tied or self.embedding is None else self.embedding.nbytes
        for layer in self.layers:
            if isinstance(mixture := layer.block.feed_forward, Experts):
                count = len(mixture.experts)
                idle += layer.mlp_bytes * (count - mixture.used) // count
        return idle

    @property
    def expert_bytes(self) -> int:
        """The bytes of an expert: the mean over the first layer with experts; 0 without experts."""
        for layer in self.layers:
            if isinstance(mixture := layer.block.feed_forward, Experts):
                return layer.mlp_bytes // len(mixture.experts)
        return 0


def _part(name: str) -> str:
    """The part of a model that a tensor belongs to: ``layers.3``, ``embedding``, ``final_norm`` or ``head``."""
    return ".".join(name.split(".")[: 2 if name.startswith("layers.") else 1])
