"""Random low-rank adapters, and the weights that they amount to."""

from __future__ import annotations

import numpy as np

from ipex_lookahead.architectures.adapter import Adapter, AppliedAdapter, LowRank, adaptable
from ipex_lookahead.architectures.spec import ModelSpec
from tests.support.specs import Weights


def random_adapter(
    spec: ModelSpec, seed: int = 0, *, share: float = 1.0, ranks: tuple[int, ...] = (1, 5, 16, 33), name: str = "a"
) -> Adapter:
    """Changes of a share of the matrices, as large as the matrices themselves."""
    rng = np.random.default_rng(seed)
    shapes = {one.name: one.shape for one in spec.tensors()}
    made: dict[str, LowRank] = {}
    for matrix in adaptable(spec):
        if made and rng.random() > share:
            continue
        (n_out, n_in), rank = shapes[matrix], int(rng.choice(ranks))
        a = rng.standard_normal((rank, n_in)) / np.sqrt(n_in)
        b = rng.standard_normal((n_out, rank)) / np.sqrt(rank)
        made[matrix] = LowRank(a.astype(np.float32), b.astype(np.float32), float(rng.choice((0.5, 1.0, 1.25))))
    return Adapter(name, made)


def merged(weights: Weights, applied: AppliedAdapter) -> Weights:
    """The weights of a model that an adapter was merged into."""
    changes = applied.adapter.matrices
    return {
        name: (value + applied.scale * changes[name].scale * (changes[name].b.astype(np.float64) @ changes[name].a))
        .astype(np.float32) if name in changes else value
        for name, value in weights.items()
    }  # fmt: skip
