"""A model's weights on a device."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np

from ipex_lookahead.architectures.spec import Block, Experts, Linear, ModelSpec, Norm, Tensor
from ipex_lookahead.engines.load_weights import Order, Read, load_weights, stored_weights
from ipex_lookahead.engines.native.experts import RoutedExperts
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import Matrix
from ipex_lookahead.engines.opencl.operations import operation_of
from ipex_lookahead.engines.opencl.operations.attention import AttentionOperation
from ipex_lookahead.engines.opencl.operations.base import Branch, NormBefore
from ipex_lookahead.engines.opencl.operations.experts import ExpertsOperation
from ipex_lookahead.engines.opencl.operations.features import FeatureOperation
from ipex_lookahead.engines.opencl.operations.latent_attention import LatentAttentionOperation
from ipex_lookahead.engines.opencl.operations.per_layer import PerLayerInputs
from ipex_lookahead.engines.opencl.uploads import Floats, Held, Uploads
from ipex_lookahead.formats.base import PackedWeight

PARTS = ("mixer", "feed_forward", "per_layer")
"""The fields of a block with an operation, in order."""
EMBEDDING = ("embedding",)
"""The tensor that a device leaves out where it does not embed tokens."""


class Weights:
    """A model's weights on a device.

    Args:
        device: the device.
        spec: the model.
        read: returns a tensor's weight; see ``load_weights``.
        threads: number of CPU threads that pack the weights; None: one per core.
        skip: names of the tensors that the device does not hold.
        held: receives the weights; None: a new one.
        cpu_moe: number of first layers with their routed experts on the CPU.

    Attributes:
        per_layer: the additional inputs of layers; None: the model has none.
        branches: the operations of all blocks in order.
        embedding, final_norm, head: the rest; the lm_head is in one or several pieces.
        embedding_norm: norm over embeddings, with weights of one; None: there is none, or no embedding here.
        features, centroids: of a drafting head.
        held: all of them by name; given by the caller where it has layers of another model's.

    Raises:
        EngineError: the device lacks the memory.
    """

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        read: Read,
        threads: int | None = None,
        skip: Collection[str] = (),
        held: Held | None = None,
        cpu_moe: int = 0,
    ) -> None:
        self.device, self.spec = device, spec
        self._skip = skip
        self._orders: dict[str, Order] = {}
        self.held = Held(core=_core(spec, cpu_moe, threads)) if held is None else held
        self.embedding: Matrix | None = None
        self.head: list[Matrix] = []
        self.features: FeatureOperation | None = None
        self.centroids: Matrix | None = None
        self.per_layer: PerLayerInputs | None = None
        self.branches: list[Branch] = []
        for part, weights in groupby(load_weights(spec, read, self._orders, self._skip), lambda one: _part(one[0])):
            taken: dict[str, PackedWeight] = {}
            orders: dict[str, dict[str, Order]] = {name: {} for name in PARTS}
            for name, tensor, weight in weights:
                taken[tensor.name] = weight
                if name in self._orders:
                    *_, field, layer, _ = name.split(".")  # no part outside blocks has an order
                    orders[field][layer] = self._orders[name]
            number = int(part.partition(".")[2]) if part.startswith("layers.") else 0
            uploads = {field: Uploads(device, self.held, taken, own, threads, number) for field, own in orders.items()}
            whole = uploads["mixer"]
            if part == "final_norm":
                norm = spec.final_norm
                self.final_norm = NormBefore(whole.norm(norm), norm, bias=whole.bias(norm))
            elif part == "per_layer":
                assert spec.per_layer is not None
                self.per_layer = PerLayerInputs(spec.per_layer, whole)
            elif part == "head" or spec.tied and part == "embedding":
                head = Linear(spec.embedding) if spec.head is None else spec.head
                self.head = whole.in_pieces(head, spec.tied)
            elif part == "embedding":
                self.embedding = whole.matrix([Linear(spec.embedding)])
            elif part == "features":
                assert spec.features is not None
                self.features = FeatureOperation(spec.features, whole, device)
            elif part == "candidates":
                assert spec.candidates is not None
                self.centroids = whole.matrix([spec.candidates.centroids])
            else:
                self.branches += _branches(number, spec.layers[number], uploads, number < cpu_moe)
            assert not taken, taken.keys()
        if spec.tied:
            (self.embedding,) = self.head
        self.embedding_norm: NormBefore | None = None
        if spec.embedding_norm is not None and self.embedding is not None:
            ones = device.upload(np.ones(spec.hidden, np.float32))
            self.embedding_norm = NormBefore(ones, Norm(spec.final_norm.weight, spec.embedding_norm))

    @property
    def mixtures(self) -> list[tuple[int, ExpertsOperation]]:
        """The mixtures of experts, each with the index of its block."""
        found = ((branch.layer, branch.operation) for branch in self.branches)
        return [(layer, one) for layer, one in found if isinstance(one, ExpertsOperation)]

    @property
    def attentions(self) -> list[AttentionOperation | LatentAttentionOperation]:
        """The layers of attention."""
        kinds = AttentionOperation | LatentAttentionOperation
        return [branch.operation for branch in self.branches if isinstance(branch.operation, kinds)]

    def stored(self) -> Iterator[tuple[str, PackedWeight]]:
        """See ``stored_weights``."""
        return stored_weights(
            self.spec, lambda _, tensor: self.held.matrix(tensor), self._vector, self._orders, self._skip
        )

    def _vector(self, _: str, tensor: Tensor) -> Floats:
        return self.held.vector(tensor, self.device)

    @property
    def nbytes(self) -> int:
        """The bytes of all weights, those on the CPU included."""
        return self.held.nbytes + (0 if self.held.core is None else self.held.core.nbytes)

    @property
    def idle_bytes(self) -> int:
        """The bytes of weights that a step of one row does not read: an untied embedding, and idle experts."""
        idle = 0 if self.spec.tied or self.embedding is None else self.embedding.nbytes
        for _, one in self.mixtures:
            count = len(one.mixture.experts)
            idle += one.nbytes * (count - one.mixture.used) // count
        return idle

    @property
    def expert_bytes(self) -> int:
        """The bytes of an expert: the mean over the first layer with experts; 0 without experts."""
        return next((one.nbytes // len(one.mixture.experts) for _, one in self.mixtures), 0)


def _core(spec: ModelSpec, cpu_moe: int, threads: int | None) -> RoutedExperts | None:
    """Return the core's experts, without weights, of the first ``cpu_moe`` layers; None: these have no mixtures."""
    mixtures = [one if isinstance(one := block.feed_forward, Experts) else None for block in spec.layers[:cpu_moe]]
    return RoutedExperts(mixtures, spec.hidden, threads) if any(mixtures) else None


def _branches(number: int, block: Block, uploads: dict[str, Uploads], cpu_moe: bool) -> Iterator[Branch]:
    """Upload a block and yield its branches; ``cpu_moe``: its routed experts are on the CPU."""
    parts = [(name, part) for name in PARTS if (part := getattr(block, name)) is not None]
    shared = NormBefore(
        uploads["mixer"].norm(block.mixer_norm), block.mixer_norm, bias=uploads["mixer"].bias(block.mixer_norm)
    )
    scale = uploads["mixer"].vector(block.output_scale)
    for name, part in parts:
        own = uploads[name]
        operation = operation_of(part, cpu_moe)(part, own)
        before, after = shared, getattr(block, f"{name}_after")
        if name != "mixer" and not block.parallel:
            norm = getattr(block, f"{name}_norm", None)
            before = NormBefore(own.norm(norm), norm, bias=own.bias(norm))
        yield Branch(
            number,
            operation,
            replace(before, order=own.order(operation.reads)),
            NormBefore(own.norm(after), after, bias=own.bias(after)),
            multiplier=1.0 if name == "per_layer" else block.residual_multiplier,
            scale=scale if part is parts[-1][1] else None,
            defers=block.parallel and name == "mixer",
            adds_deferred=block.parallel and name == "feed_forward",
        )


def _part(name: str) -> str:
    """The part of a model that a tensor belongs to: ``layers.3``, ``embedding``, ``final_norm`` or ``head``."""
    return ".".join(name.split(".")[: 2 if name.startswith("layers.") else 1])
