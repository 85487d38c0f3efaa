"""A model's weights on a device, as a step reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Block, Experts, Linear, ModelSpec, Norm, Tensor
from ipex_lookahead.engines.input_order import Order, reordered, warn_of_decoded, with_order
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import LANES, Matrix, stream_bytes
from ipex_lookahead.engines.opencl.supported import attention_of, mlps_of
from ipex_lookahead.engines.weights import outputs_of, together
from ipex_lookahead.formats import as_floats
from ipex_lookahead.formats.base import PackedWeight

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrices of one format one below the other: an MLP's only one, or of a mixture's experts those in that format.

    ``places``: on the device, int32 [experts], which part of the matrix an expert is, -1 for those of other stacks;
    None without a mixture.
    """

    matrix: Matrix
    places: Any = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's weights.

    Attributes:
        block: what it is.
        qkv: one matrix where formats allow, else three.
        o, router: the router of a mixture, in floats.
        gate, up, down: of a mixture a stack for each format of its experts; gate and up are in the same formats, expert
            by expert, where their stacks are ``paired``.
        vectors: norms and sinks by name.
        orders: on the device, int32, by the first of the matrices that share them; only those that there are.
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
        """Of all experts, or of the only MLP."""
        return sum(stack.matrix.nbytes for stacks in (self.gate, self.up, self.down) for stack in stacks)


class Weights:
    """All of a model's weights.

    Args:
        device: where.
        spec: what it is.
        matrix, vector: a tensor -> its weight, asked in the order a step reads them.
        threads: of this machine, which pack the weights; None: as many as it has cores.
        embeds: whether the embedding is there for tokens; a tied one is there as lm_head in any case.

    Raises:
        EngineError: the device has no memory for them.
    """

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        matrix: Callable[[Tensor], PackedWeight],
        vector: Callable[[Tensor], Floats],
        threads: int | None = None,
        embeds: bool = True,
    ) -> None:
        self.device, self.spec = device, spec
        self._matrix, self._vector, self._threads, self._embeds = matrix, vector, threads, embeds
        self._matrices: dict[str, list[tuple[Matrix, int]]] = {}
        self._vectors: dict[str, Any] = {}
        self._orders: dict[str, Order] = {}
        self._decoded: Counter[str] = Counter()
        head = Linear(spec.embedding) if spec.head is None else spec.head
        self.embedding: Matrix | None = None
        if embeds and not spec.tied:
            self.embedding = self._alone(Linear(spec.embedding))
        self.layers = [self._layer(block) for block in spec.layers]
        self.final_norm = self._norm(spec.final_norm)
        self.head = self._in_pieces(head)
        if embeds and spec.tied:
            (self.embedding,) = self.head
        warn_of_decoded(self._decoded)

    # ---- as they come ------------------------------------------------------------------------------------------------

    def _layer(self, block: Block) -> Layer:
        own, mlps, orders = attention_of(block), mlps_of(block), {}

        def place(name: str, linears: Sequence[Linear], decides: bool = True) -> list[PackedWeight]:
            """The weights that read the rows made at a place of the block, for their order."""
            weights = [self._matrix(linear.weight) for linear in linears]
            if decides and weights[0].order is not None:
                orders[name] = np.ascontiguousarray(weights[0].order)
            order = orders.get(name)
            if order is not None:
                self._orders |= {linear.weight.name: order for linear in linears}
            return [self._for_order(weight, order) for weight in weights]

        mixture = isinstance(block.feed_forward, Experts)
        vectors = {"mixer_norm": self._norm(block.mixer_norm)}
        assert own.k is not None  # as check_spec has seen
        assert own.v is not None
        heads = (own.q, own.k, own.v)
        weights = place("q", heads)
        alike = len({(weight.format, weight.group_size) for weight in weights}) == 1 and self._fit(weights) == 3
        groups = [range(3)] if alike else [range(i, i + 1) for i in range(3)]
        qkv = [self._upload([heads[i] for i in group], [weights[i] for i in group]) for group in groups]
        vectors |= {"q_norm": self._norm(own.q_norm), "k_norm": self._norm(own.k_norm), "sinks": self._put(own.sinks)}
        o = self._upload([own.o], place("o", [own.o]))
        vectors |= {
            "mixer_after": self._norm(block.mixer_after),
            "feed_forward_norm": self._norm(block.feed_forward_norm),
        }
        router = None
        if isinstance(block.feed_forward, Experts):
            linear = block.feed_forward.router
            router = self._upload([linear], [as_floats(self._matrix(linear.weight))])
        gate, up, down = (
            self._stacks(linears, place("" if mixture else shared, linears, not mixture and name == shared), mixture)
            for name, shared in (("gate", "gate"), ("up", "gate"), ("down", "down"))
            for linears in [[getattr(mlp, name) for mlp in mlps]]
        )
        vectors["feed_forward_after"] = self._norm(block.feed_forward_after)
        formats = [[self._format_of(getattr(mlp, name)) for mlp in mlps] for name in ("gate", "up")]
        on_device = {name: self.device.upload(order) for name, order in orders.items()}
        return Layer(block, qkv, o, router, gate, up, down, formats[0] == formats[1], vectors, on_device)

    def _for_order(self, weight: PackedWeight, order: Order | None) -> PackedWeight:
        made = reordered(weight, order)
        if made.format != weight.format:
            self._decoded[weight.format] += 1
        return made

    def _alone(self, linear: Linear) -> Matrix:
        return self._upload([linear], [self._for_order(self._matrix(linear.weight), None)])

    def _in_pieces(self, linear: Linear) -> list[Matrix]:
        """The lm_head, its outputs in as many matrices as it takes buffers; in one where it embeds tokens too."""
        weight = self._for_order(self._matrix(linear.weight), None)
        bias = None if linear.bias is None else self._vector(linear.bias)
        tiles = -(-weight.shape[0] // LANES)
        of_a_tile = max(stream_bytes(weight.format, weight.shape, weight.group_size)) // tiles
        whole = self.spec.tied and self._embeds
        step = LANES * (tiles if whole else min(tiles, max(self.device.largest_buffer // of_a_tile, 1)))
        pieces = [slice(first, first + step) for first in range(0, weight.shape[0], step)]
        made = [
            Matrix.upload(
                self.device, [outputs_of(weight, piece)], [None if bias is None else bias[piece]], self._threads
            )
            for piece in pieces
        ]
        self._matrices[linear.weight.name] = [(one, 0) for one in made]
        self._keep_bias(linear, bias)
        return made

    def _stacks(self, linears: Sequence[Linear], weights: Sequence[PackedWeight], mixture: bool) -> list[Stack]:
        """Those of one format together, in the order in which formats appear, as many as a buffer holds."""
        groups: dict[tuple[str, int], list[int]] = {}
        for i, weight in enumerate(weights):
            groups.setdefault((weight.format, weight.group_size), []).append(i)
        made = []
        for group in (part for alike in groups.values() for part in self._parts(alike, weights)):
            matrix = self._upload([linears[i] for i in group], [weights[i] for i in group])
            places = np.full(len(linears), -1, np.int32)
            places[group] = np.arange(len(group))
            made.append(Stack(matrix, self.device.upload(places) if mixture else None))
        return made

    def _fit(self, weights: Sequence[PackedWeight]) -> int:
        """How many of weights of one size and format a buffer of the device holds; at least one."""
        largest = max(max(stream_bytes(one.format, one.shape, one.group_size)) for one in weights)
        return min(len(weights), max(self.device.largest_buffer // largest, 1))

    def _parts(self, group: list[int], weights: Sequence[PackedWeight]) -> list[list[int]]:
        most = self._fit([weights[i] for i in group])
        return [group[i : i + most] for i in range(0, len(group), most)]

    def _upload(self, linears: Sequence[Linear], weights: Sequence[PackedWeight]) -> Matrix:
        biases = [None if linear.bias is None else self._vector(linear.bias) for linear in linears]
        made = Matrix.upload(self.device, weights, biases, self._threads)
        for part, (linear, bias) in enumerate(zip(linears, biases, strict=True)):
            self._matrices[linear.weight.name] = [(made, part)]
            self._keep_bias(linear, bias)
        return made

    def _keep_bias(self, linear: Linear, bias: Floats | None) -> None:
        if linear.bias is not None and bias is not None:
            self._vectors[linear.bias.name] = self.device.upload(bias)

    def _put(self, tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        self._vectors[tensor.name] = self.device.upload(self._vector(tensor))
        return self._vectors[tensor.name]

    def _norm(self, one: Norm | None) -> Any:
        return self._put(None if one is None else one.weight)

    def _format_of(self, linear: Linear) -> tuple[str, int]:
        ((made, _),) = self._matrices[linear.weight.name]
        return made.format, made.group_size

    # ---- as they are given back --------------------------------------------------------------------------------------

    def matrix(self, tensor: Tensor) -> PackedWeight:
        """A weight in plain order, bit for bit as it came."""
        parts = [one.weights()[part] for one, part in self._matrices[tensor.name]]
        return with_order(together(parts), self._orders.get(tensor.name))

    def vector(self, tensor: Tensor) -> Floats:
        """A norm's weights, a bias or sinks as they came."""
        return self.device.read(self._vectors[tensor.name], tensor.shape, np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights on the device."""
        matrices = {id(one): one.nbytes for parts in self._matrices.values() for one, _ in parts}
        return sum(matrices.values()) + sum(int(buffer.size) for buffer in self._vectors.values())

    @property
    def idle_bytes(self) -> int:
        """Bytes of weights that a step of one row does not read: an embedding that is no lm_head, and idle experts."""
        idle = 0 if self.spec.tied or self.embedding is None else self.embedding.nbytes
        for layer in self.layers:
            if isinstance(mixture := layer.block.feed_forward, Experts):
                count = len(mixture.experts)
                idle += layer.mlp_bytes * (count - mixture.used) // count
        return idle

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert's weights, the mean of the first layer that has some; 0 without experts."""
        for layer in self.layers:
            if isinstance(mixture := layer.block.feed_forward, Experts):
                return layer.mlp_bytes // len(mixture.experts)
        return 0
