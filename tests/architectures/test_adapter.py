"""Adapters as values: their identity, which matrices of a model they may change, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures.adapter import (
    Adapter,
    AppliedAdapter,
    LowRank,
    adaptable,
    adapter_refusals,
    check_adapter,
)
from ipex_lookahead.errors import InputError, UnsupportedModelError
from tests.support.specs import make_spec

Q = "layers.0.q.weight"


def change(n_in: int = 64, n_out: int = 64, rank: int = 4, scale: float = 0.5, seed: int = 0) -> LowRank:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((rank, n_in)), rng.standard_normal((n_out, rank))
    return LowRank(a.astype(np.float32), b.astype(np.float32), scale)


def test_the_digest_is_of_the_contents_alone() -> None:
    one = Adapter("one", {Q: change(), "x": change(seed=1)})
    assert Adapter("two", {"x": change(seed=1), Q: change()}).digest == one.digest
    others = [
        {Q: change(), "y": change(seed=1)},
        {Q: change()},
        {Q: change(scale=0.25), "x": change(seed=1)},
        {Q: change(seed=2), "x": change(seed=1)},
    ]
    assert len({one.digest, *(Adapter("one", other).digest for other in others)}) == 5
    assert one.nbytes == 2 * 4 * (4 * 64 + 64 * 4)
    assert Adapter("ranks", {"a": change(), "b": change(rank=2), "c": change()}).ranks == (2, 4)


def test_the_key_of_an_applied_adapter_is_its_digest_and_scale() -> None:
    one, two = Adapter("one", {Q: change()}), Adapter("two", {Q: change()})
    assert AppliedAdapter(one).key == AppliedAdapter(two, 1).key
    assert AppliedAdapter(one, 0.5).key != AppliedAdapter(one).key
    for scale in (math.nan, math.inf):
        with pytest.raises(InputError, match=r"the scale of adapter one is (nan|inf); it must be finite"):
            AppliedAdapter(one, scale)


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (LowRank(np.zeros((4, 64), np.float64), change().b, 1.0), "must be float32 matrices"),  # type: ignore[arg-type]
        (LowRank(np.zeros((3, 64), np.float32), change().b, 1.0), r"shape \[3, 64\] and B \[64, 4\]; their rank"),
        (LowRank(np.zeros((0, 64), np.float32), np.zeros((64, 0), np.float32), 1.0), "from 1 to 4096"),
        (LowRank(change().a, np.full((64, 4), np.nan, np.float32), 1.0), "not finite"),
        (LowRank(change().a, change().b, math.inf), "not finite"),
    ],
)
def test_bad_values_are_refused(made: LowRank, match: str) -> None:
    with pytest.raises(InputError, match=match):
        Adapter("bad", {Q: made})


def test_linear_layers_of_blocks_are_adaptable_and_nothing_else() -> None:
    """Each matrix is either adaptable or refused with its reason."""
    options: dict[str, Any] = {
        "layers": 2, "experts": [0, 3], "used": [0, 2], "shared_expert": 24, "attention_gate": True, "tied": False,
    }  # fmt: skip
    spec = make_spec(**options, latent=[None, (16, 8, 8, 8, 24)], per_layer=5)
    found, refused = adaptable(spec), adapter_refusals(spec)
    matrices = [one.name for one in spec.tensors() if one.is_matrix]
    assert sorted([*found, *refused]) == sorted(matrices)
    fields = [path.removeprefix("layers.").removesuffix(".weight") for path in found.values()]
    assert fields == [
        "0.mixer.q", "0.mixer.k", "0.mixer.v", "0.mixer.gate", "0.mixer.o", "0.feed_forward.gate", "0.feed_forward.up",
        "0.feed_forward.down", "0.per_layer.gate", "0.per_layer.out", "1.mixer.q_a", "1.mixer.kv_a", "1.mixer.q",
        "1.mixer.o", "1.per_layer.gate", "1.per_layer.out",
    ]  # fmt: skip
    assert "lm_head" in refused["head"]
    assert "embeddings" in refused["embedding"]
    assert "router" in refused["layers.1.router.weight"]
    assert "experts of a mixture" in refused["layers.1.experts.0.gate.weight"]
    assert "shared expert" in refused["layers.1.shared.up.weight"]
    assert "kv_b" in refused["layers.1.k_b.0.weight"]


def test_an_adapter_that_does_not_fit_is_refused() -> None:
    spec = make_spec()
    check_adapter(Adapter("fits", {Q: change(), "layers.1.k.weight": change(n_out=32)}), spec)
    for matrices, error, match in [
        ({}, InputError, "adapter a changes no matrix"),
        ({"layers.9.q.weight": change()}, InputError, r"changes layers\.9\.q\.weight, which a made_up model"),
        ({"layers.1.k.weight": change()}, InputError, r"has shape \[32, 64\], and the adapter's B A \[64, 64\]"),
        ({"embedding": change(n_out=96)}, UnsupportedModelError, "changes embedding: embeddings take no adapter"),
    ]:
        with pytest.raises(error, match=match):
            check_adapter(Adapter("a", matrices), spec)
