"""Routed experts by themselves: the bits of a decoder whose only operation they are, and the sum in order of rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures.spec import Activation, Experts, ModelSpec, named_tensors
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.experts import RoutedExperts
from ipex_lookahead.errors import InputError, MissingWeightError, UnsupportedModelError
from ipex_lookahead.formats import as_floats
from tests.support.native import chain, ids_of
from tests.support.specs import make_spec, random_weights, reader

MIXTURES: dict[str, dict[str, Any]] = {
    "plain": {"hidden": 64, "intermediate": 96},
    "uneven": {"hidden": 40, "intermediate": 37, "bias": "gud"},
    "clamped": {"hidden": 33, "intermediate": 40, "activation": Activation("clamped", 1.702, 0.7), "bias": "gud"},
    "without a gate": {"hidden": 64, "intermediate": 48, "gated": False, "activation": Activation("relu_squared")},
}


def mixture_alone(**options: Any) -> ModelSpec:
    """A dense layer, and one whose only operation is a mixture that reads the rows themselves."""
    spec = make_spec(layers=2, experts=[0, 4], used=[0, 1], scores="chosen", feed_forward_norm=False, **options)
    return replace(spec, layers=(spec.layers[0], replace(spec.layers[1], mixer=None, mixer_norm=None)))


def experts_of(spec: ModelSpec, read: Any, threads: int = 1) -> RoutedExperts:
    mixture = spec.layers[1].feed_forward
    assert isinstance(mixture, Experts)
    made = RoutedExperts([None, mixture], spec.hidden, threads)
    for name, tensor in named_tensors(mixture.experts, "layers.1.feed_forward.experts"):
        made.set(name, read(tensor))
    return made


@pytest.mark.parametrize(
    ("name", "low_bit"),
    [*((name, low_bit) for name in MIXTURES for low_bit in ("fp32", "sym_int4", "mixed")), ("q6_k", "q6_k")],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_have_a_decoders_bits(name: str, low_bit: str, threads: int) -> None:
    spec = mixture_alone(**MIXTURES.get(name, {"hidden": 256, "intermediate": 256}))
    formats = {"experts.1": "sym_int8", "experts.2.up": "fp16"}
    read = reader(
        random_weights(spec),
        low_bit
        if low_bit != "mixed"
        else lambda one: next((v for k, v in formats.items() if k in one.name), "sym_int4"),
    )
    native, experts = NativeEngine.build(spec, low_bit, read, threads=threads), experts_of(spec, read, threads)
    for rows in (1, 5, 17, 200):
        out = native.forward(
            Batch([native.new_cache()], [rows], ids_of(native, rows), chain(rows), OutputRequest(hidden=(1, 2)))
        )
        assert out.hidden is not None
        x, after = out.hidden[1], out.hidden[2]
        chosen = chosen_by(spec, read, x)
        sums, touched = experts.run(1, x, chosen[:, None], np.ones((rows, 1), np.float32))
        assert (x + sums).tobytes() == after.tobytes(), rows
        assert touched == len(np.unique(chosen)) == out.experts


def chosen_by(spec: ModelSpec, read: Any, x: np.ndarray) -> np.ndarray:
    """Each row's best expert; routers are in floats."""
    mixture = spec.layers[1].feed_forward
    assert isinstance(mixture, Experts)
    weight = np.asarray(as_floats(read(mixture.router.weight)).codes, np.float64)
    best: np.ndarray = (x.astype(np.float64) @ weight.T).argmax(axis=1)
    return best.astype(np.int32)


def test_experts_are_added_in_order_of_rank() -> None:
    """Weights are powers of two: their products are exact, so every sum is a sum of float32 values."""
    spec = make_spec(layers=2, experts=4, used=3)
    experts, rng = experts_of(spec, reader(random_weights(spec), "sym_int4")), np.random.default_rng(0)
    single = mixture_alone()
    one = experts_of(single, reader({t.name: random_weights(spec)[t.name] for t in spec.tensors()}, "sym_int4"))
    x = rng.standard_normal((40, 64)).astype(np.float32)
    chosen = np.stack([rng.permutation(4)[:3] for _ in range(40)]).astype(np.int32)
    weights = rng.choice(np.array([1, 0.5, -0.25, 2], np.float32), (40, 3))
    expected = np.zeros((40, 64), np.float32)
    for rank in range(3):
        own = np.ascontiguousarray(chosen[:, rank : rank + 1])
        expected += weights[:, rank : rank + 1] * one.run(1, x, own, np.ones((40, 1), np.float32))[0]
    got, touched = experts.run(1, x, chosen, weights)
    assert got.tobytes() == expected.tobytes()
    assert touched == 4
    for row in (0, 39):  # a row's sum depends on the row alone
        alone, _ = experts.run(1, x[row : row + 1], chosen[row : row + 1], weights[row : row + 1])
        assert alone.tobytes() == expected[row : row + 1].tobytes()


def test_weights_come_back_as_they_were_set() -> None:
    spec = mixture_alone(bias="gud")
    read = reader(random_weights(spec), "sym_int4")
    experts = experts_of(spec, read)
    mixture = spec.layers[1].feed_forward
    assert isinstance(mixture, Experts)
    for name, tensor in named_tensors(mixture.experts, "layers.1.feed_forward.experts"):
        if tensor.is_matrix:
            pairs = zip(experts.matrix(name).arrays(), read(tensor).arrays(), strict=True)
            assert all(ours[1].tobytes() == theirs[1].tobytes() for ours, theirs in pairs)
        else:
            assert experts.vector(name).tobytes() == read(tensor).codes.tobytes()
    assert experts.nbytes > 0


def test_wrong_arguments_are_refused() -> None:
    spec = mixture_alone()
    experts = experts_of(spec, reader(random_weights(spec), "sym_int4"))
    x, chosen, weights = np.zeros((2, 64), np.float32), np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32)
    for layer in (-1, 0, 2):
        with pytest.raises(InputError, match=f"layer {layer} has no experts here"):
            experts.run(layer, x, chosen, weights)
    for wrong in (-1, 4):
        with pytest.raises(InputError, match=f"expert {wrong} is not one of the layer's 4"):
            experts.run(1, x, np.array([[0], [wrong]], np.int32), weights)
    for arrays in ((x[:, :63].copy(), chosen, weights), (x, chosen[:1], weights), (x, chosen, weights[:1])):
        with pytest.raises(InputError, match=r"x must have shape \[rows, 64\], experts and weights \[rows, 1\]"):
            experts.run(1, *arrays)
    with pytest.raises(InputError, match="rows is 0; it must be from 1"):
        experts.run(1, x[:0], chosen[:0], weights[:0])
    mixture = spec.layers[1].feed_forward
    assert isinstance(mixture, Experts)
    with pytest.raises(MissingWeightError, match=r"layers.0.feed_forward.experts.0.gate.weight is not set"):
        RoutedExperts([mixture], 64, 1).run(0, x, chosen, weights)
    with pytest.raises(UnsupportedModelError, match="experts used is 9"):
        RoutedExperts([replace(mixture, used=9)], 64, 1)
    with pytest.raises(UnsupportedModelError, match="layers must be Experts or None"):
        RoutedExperts([spec.layers[0].feed_forward], 64, 1)  # type: ignore[list-item]
