"""The walk that brings weights into engines: what becomes of any tensor that is stored in low bits or in act order."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.architectures.spec import ModelSpec, Tensor
from ipex_lookahead.engines.load_weights import Order, load_weights, random_weights, walk, weights_of
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.formats import FLOATS, FORMATS, as_floats, dequantize
from ipex_lookahead.formats.base import PackedWeight
from tests.support.family_configs import read_config
from tests.support.family_engines import each, some
from tests.support.family_table import CONTEXT, Variant, variants
from tests.support.specs import make_spec
from tests.support.tiny_families import config_of


def spec_of(folder: Path, model_type: str, variant: Variant, **more: Any) -> ModelSpec:
    config_of(model_type, variant).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | more), encoding="utf-8")
    return spec_for(read_config(path), CONTEXT)


class Stored:
    """Random weights, which are remembered: vectors in floats, matrices as a function makes them."""

    def __init__(self, spec: ModelSpec, matrix: Callable[[Tensor], PackedWeight]) -> None:
        self._matrix, self._vectors = matrix, random_weights(spec, "fp32")
        self.given: dict[str, PackedWeight] = {}

    def __call__(self, tensor: Tensor) -> PackedWeight:
        made = self._matrix(tensor) if tensor.is_matrix else self._vectors(tensor)
        self.given[tensor.name] = made
        return made


def in_low_bits(tensor: Tensor) -> PackedWeight:
    name = "q6_k" if tensor.shape[1] % 256 == 0 else "sym_int8" if tensor.shape[1] % 32 == 0 else "fp8_e5m2"
    return packed(tensor, name)


def packed(tensor: Tensor, name: str) -> PackedWeight:
    shape = (tensor.shape[0], tensor.shape[1])
    return FORMATS[name].random(shape, FORMATS[name].group_sizes[0], np.random.default_rng(len(tensor.name)))


def in_order(tensor: Tensor) -> PackedWeight:
    """In low bits, in one order for all matrices with that number of inputs."""
    weight = in_low_bits(tensor)
    order = np.random.default_rng(tensor.shape[1]).permutation(tensor.shape[1]).astype(np.int32)
    return replace(weight, order=order)


def same(one: PackedWeight, other: PackedWeight) -> bool:
    """Whether all streams are equal."""
    mine, theirs = ([(name, array.tobytes()) for name, array in weight.arrays()] for weight in (one, other))
    return one.format == other.format and mine == theirs


@each(some())
@pytest.mark.rotating(27)
def test_any_matrix_may_be_in_low_bits(tmp_path: Path, model_type: str, variant: Variant) -> None:
    """Routers and gates of shared experts are decoded; all other matrices keep their codes."""
    spec = spec_of(tmp_path, model_type, variant)
    stored = Stored(spec, in_low_bits)
    found = dict(NativeEngine.build(spec, "mixed", stored, threads=1).weights())
    assert {tensor.name for tensor in spec.tensors()} == found.keys() == stored.given.keys()
    vectors = {tensor.name for tensor in spec.tensors() if not tensor.is_matrix}
    for name, weight in found.items():
        if name in spec.routers():
            assert same(weight, as_floats(stored.given[name])), name
        elif name not in vectors:
            assert same(weight, stored.given[name]), name


@each(some())
@pytest.mark.rotating(27)
def test_any_matrix_may_be_in_act_order(tmp_path: Path, model_type: str, variant: Variant) -> None:
    """Each is given back with its values, in low bits where kernels reorder its inputs, else in float32."""
    spec = spec_of(tmp_path, model_type, variant)
    stored = Stored(spec, in_order)
    found = dict(NativeEngine.build(spec, "mixed", stored, threads=1).weights())
    for tensor in spec.tensors():
        if tensor.is_matrix:
            weight, given = found[tensor.name], stored.given[tensor.name]
            assert np.array_equal(dequantize(weight), dequantize(given)), tensor.name
            assert weight.format == (given.format if weight.order is not None else "fp32"), tensor.name


def loaded(spec: ModelSpec, stored: Stored) -> tuple[dict[str, PackedWeight], dict[str, Order]]:
    orders: dict[str, Order] = {}
    return {name: weight for name, _, weight in load_weights(spec, stored, orders)}, orders


def test_the_first_matrix_decides_the_order_of_those_that_read_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of(tmp_path, "qwen3_5_text", variants("qwen3_5_text")[0])
    kinds = [type(block.mixer).__name__ for block in spec.layers]
    at = f"layers.{kinds.index('Attention')}"
    stored = Stored(
        spec, lambda one: replace(in_order(one), order=None) if one.name.endswith("k_proj.weight") else in_order(one)
    )
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        found, orders = loaded(spec, stored)
    assert "are kept in float32: their inputs have another order" in caplog.text
    assert {name for name in orders if name.startswith(at)} == {
        f"{at}.{name}.weight" for name in ("mixer.q", "mixer.o", "feed_forward.gate", "feed_forward.down")
    }
    formats = {name: found[f"{at}.mixer.{name}.weight"].format for name in ("q", "k", "v", "gate", "o")}
    assert formats == {"q": "sym_int8", "k": "fp32", "v": "sym_int8", "gate": "sym_int8", "o": "sym_int8"}
    assert all(weight.order is None for weight in found.values())


def test_a_head_is_read_as_its_model_is(tmp_path: Path) -> None:
    """A block for drafting of a mixture: a router in low bits is decoded, and act order is kept."""
    spec = spec_of(tmp_path, "qwen3_5_moe_text", variants("qwen3_5_moe_text")[0], mtp_num_hidden_layers=1)
    assert spec.mtp is not None
    target = NativeEngine.random(spec, "sym_int8", threads=1)
    for make in (in_low_bits, in_order):
        stored = Stored(spec.mtp, make)
        found = dict(NativeHead.build(spec.mtp, stored, target, threads=1).weights())
        assert found.keys() == stored.given.keys() > {*spec.mtp.routers()}
        for name in (tensor.name for tensor in spec.mtp.own_tensors() if tensor.is_matrix):
            weight = found[name]
            assert np.array_equal(dequantize(weight), dequantize(stored.given[name])), name
            assert name not in spec.mtp.routers() or weight.format == "fp32"
    assert found["mtp.layers.0.self_attn.o_proj.weight"].order is not None


def test_tensors_are_read_once_and_a_tied_embedding_last() -> None:
    for tied in (True, False):
        spec = make_spec(tied=tied)
        names = [name for name, _ in walk(spec)]
        assert len(names) == len({*names}) == sum(1 for _ in spec.tensors())
        assert names.index("embedding") == (len(names) - 1 if tied else 0)
        assert [*walk(spec, ("embedding",))] == [one for one in walk(spec) if one[0] != "embedding"]


def test_an_engines_weights_are_read_in_any_order() -> None:
    class Engine:
        def weights(self) -> Any:
            yield from given.items()

    spec = make_spec()
    tensors = [*spec.tensors()]
    given = {tensor.name: random_weights(spec, "fp16")(tensor) for tensor in tensors}
    read = weights_of(Engine())
    for tensor in reversed(tensors):
        assert same(read(tensor), given[tensor.name])
    assert {one.format for one in given.values()} <= {*FLOATS}
