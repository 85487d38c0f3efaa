"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685): y = W x + scale * B (A x), with W unchanged."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Experts, ModelSpec, named_tensors
from ipex_lookahead.errors import InputError, UnsupportedModelError

Floats = npt.NDArray[np.float32]

MAX_RANK = 4096
"""Largest rank of an adapter's matrix."""


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The change of one matrix W [n_out, n_in]: y = W x + scale * B (A x).

    Attributes:
        a: A, float32 [rank, n_in].
        b: B, float32 [n_out, rank]. Its rows are in the order of the matrix in ``ModelSpec.tensors()``.
        scale: alpha / rank, or alpha / sqrt(rank) for rsLoRA.
    """

    a: Floats
    b: Floats
    scale: float

    @property
    def rank(self) -> int:
        """The number of rows of A."""
        return len(self.a)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A low-rank adapter of a model.

    Attributes:
        name: name that requests use.
        matrices: changes by the name of the changed matrix, ``Tensor.name`` in ``ModelSpec.tensors()``, such as
            ``model.layers.0.self_attn.q_proj.weight``. A fused matrix of a file is split as the base model's.
        source: the folder or file that it was read from, or None.
        digest: hash of the contents, without the name: 32 hexadecimal digits.
    """

    name: str
    matrices: Mapping[str, LowRank]
    source: Path | None = None
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256()
        for name, one in sorted(self.matrices.items()):
            if one.a.dtype != np.float32 or one.b.dtype != np.float32 or one.a.ndim != 2 or one.b.ndim != 2:
                raise InputError(f"adapter {self.name}: A and B of {name} must be float32 matrices")
            if one.b.shape[1] != one.rank or not 1 <= one.rank <= MAX_RANK:
                raise InputError(
                    f"adapter {self.name}: A of {name} has shape {list(one.a.shape)} and B {list(one.b.shape)}; their "
                    f"rank must be equal, from 1 to {MAX_RANK}"
                )
            if not (math.isfinite(one.scale) and np.isfinite(one.a).all() and np.isfinite(one.b).all()):
                raise InputError(f"adapter {self.name}: {name} has values that are not finite")
            digest.update(f"{name} {one.a.shape} {one.b.shape} {float(one.scale).hex()}\n".encode())
            digest.update(np.ascontiguousarray(one.a).data)
            digest.update(np.ascontiguousarray(one.b).data)
        object.__setattr__(self, "digest", digest.hexdigest()[:32])

    @property
    def nbytes(self) -> int:
        """Bytes of all A and B."""
        return sum(one.a.nbytes + one.b.nbytes for one in self.matrices.values())

    @property
    def ranks(self) -> tuple[int, ...]:
        """The distinct ranks, ascending."""
        return tuple(sorted({one.rank for one in self.matrices.values()}))


@dataclass(frozen=True, slots=True)
class AppliedAdapter:
    """An adapter of one sequence.

    Attributes:
        adapter: the adapter, loaded into the engine of the sequence.
        scale: factor on all its changes, finite.
    """

    adapter: Adapter
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise InputError(f"the scale of adapter {self.adapter.name} is {self.scale}; it must be finite")

    @property
    def key(self) -> str:
        """Identity of what it computes: the contents' hash and the scale. Only letters, digits, "-", "." and "+"."""
        return f"{self.adapter.digest}.{float(self.scale).hex()}"


_LINEAR = re.compile(r"layers\.(\d+)\.(\w+)\.\w+\.weight")
"""Field paths of the linear layers of blocks; experts, and the matrices of single heads, are one level deeper."""
_REASONS = (
    (".feed_forward.experts.", "experts of a mixture take no adapter"),
    (".feed_forward.shared.", "the shared expert of a mixture takes no adapter"),
    (".mixer.k_b.", "kv_b of latent attention takes no adapter, because it is split by head"),
    (".mixer.v_b.", "kv_b of latent attention takes no adapter, because it is split by head"),
)


def adapter_refusals(spec: ModelSpec) -> dict[str, str]:
    """Return the names of a model's matrices that no adapter may change, each with the reason."""
    reasons, routers = {}, {*spec.routers()}
    mixtures = {number for number, block in enumerate(spec.layers) if isinstance(block.feed_forward, Experts)}
    for path, tensor in named_tensors(spec):
        if not tensor.is_matrix:
            continue
        if tensor is spec.embedding or tensor.name in spec.tables():
            reasons[tensor.name] = "embeddings take no adapter"
        elif tensor is spec.head_weight:
            reasons[tensor.name] = "the lm_head takes no adapter"
        elif tensor.name in routers:
            reasons[tensor.name] = "the router of a mixture takes no adapter"
        elif not (linear := _LINEAR.fullmatch(path)):
            found = (reason for part, reason in _REASONS if part in path)
            reasons[tensor.name] = next(found, "adapters change linear layers of blocks only")
        elif linear[2] == "feed_forward" and int(linear[1]) in mixtures:
            reasons[tensor.name] = "linear layers around the experts of a mixture take no adapter"
    return reasons


def adaptable(spec: ModelSpec) -> dict[str, str]:
    """Return the matrices that an adapter may change: ``Tensor.name`` -> path of fields in the description."""
    refused = adapter_refusals(spec)
    return {one.name: path for path, one in named_tensors(spec) if one.is_matrix and one.name not in refused}


def check_adapter(adapter: Adapter, spec: ModelSpec) -> None:
    """Check that an adapter fits a model.

    Raises:
        UnsupportedModelError: it changes a matrix that takes no adapter.
        InputError: it changes no matrix, or one that the model does not have or that has another shape.
    """
    refused = adapter_refusals(spec)
    shapes = {tensor.name: tensor.shape for tensor in spec.tensors()}
    if not adapter.matrices:
        raise InputError(f"adapter {adapter.name} changes no matrix")
    for name, one in adapter.matrices.items():
        if name not in shapes:
            raise InputError(
                f"adapter {adapter.name} changes {name}, which a {spec.model_type} model of this size does not have",
                hint="load the model that the adapter was trained for",
            )
        if name in refused:
            raise UnsupportedModelError(f"adapter {adapter.name} changes {name}: {refused[name]}")
        shape = (len(one.b), one.a.shape[1])
        if shape != shapes[name]:
            raise InputError(
                f"adapter {adapter.name}: {name} has shape {list(shapes[name])}, and the adapter's B A {list(shape)}",
                hint="load the model that the adapter was trained for",
            )
