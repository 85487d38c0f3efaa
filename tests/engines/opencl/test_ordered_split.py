"""Lane groups that share a tile: the scalar core's bytes for every number of them, and how many a matrix gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.architectures.spec import Activation
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import Matrix, Product
from ipex_lookahead.engines.opencl.programs import Units, rows_of, splits_of
from ipex_lookahead.formats import FORMATS
from tests.engines.native.test_kernels import linear, make_weight
from tests.engines.opencl.test_engine import both
from tests.engines.opencl.test_linear import activations
from tests.engines.opencl.test_matrix_units import WHOLE, spelt_out
from tests.support.native import ids_of, run
from tests.support.specs import make_spec

__all__ = ["spelt_out"]

ROWS = (1, 2, 4, 5, 16, 17, 40)
LARGE_GPU = 1 << 20
"""A number of lane groups at once that no matrix fills."""
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"layers": 2, "hidden": 96, "intermediate": 88, "heads": 3, "kv_heads": 1, "head_dim": 32},
    "mixture": {
        "layers": 1, "hidden": 64, "intermediate": 40, "heads": 2, "kv_heads": 1, "experts": 3, "used": 2,
        "q_norm": "head", "k_norm": "head", "activation": Activation("clamped", 1.702, 0.7), "bias": "gudr",
    },
}  # fmt: skip


@pytest.fixture
def large(device: Device) -> Iterator[Device]:
    """The device, as a GPU that takes the largest splits."""
    before, device.concurrency = device.concurrency, LARGE_GPU
    yield device
    device.concurrency = before


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.rotating(10)
def test_bytes_are_the_scalar_cores(device: Device, name: str) -> None:
    """More blocks than a round has, fewer than there are lane groups, and a number that no split divides."""
    group = FORMATS[name].group_sizes[0]
    for n_out, n_in in ((17, 2304), (33, max(group, 96)), (16, 1312 if group <= 32 else 1280)):
        weight, x = make_weight(name, n_out, n_in, group=group or 32, seed=n_in), activations(ROWS[-1], n_in)
        bias = np.random.default_rng(n_in).standard_normal(n_out, dtype=np.float32)
        matrix, oracle = Matrix.upload(device, [weight], [bias]), linear(weight, x, isa="scalar", bias=bias)
        for at_once in rows_of(name, Units(16)):
            for split in splits_of("linear", name)[1:]:
                for rows in ROWS:
                    made = Product(matrix, x[:rows], at_once=at_once, split=split).result()
                    assert made.tobytes() == oracle[:rows].tobytes(), (n_in, at_once, split, rows)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.rotating(8)
def test_matrix_units_split_tiles_too(spelt_out: Device, name: str) -> None:
    weight = make_weight(name, 40, 768, group=FORMATS[name].group_sizes[0] or 32, seed=1)
    matrix, x = Matrix.upload(spelt_out, [weight], [None]), activations(23, 768)
    oracle = linear(weight, x, isa="scalar")
    for split in splits_of("linear", name)[1:]:
        for rows in (5, 8, 9, 16, 23):
            made = Product(matrix, x[:rows], at_once=16, split=split).result()
            assert made.tobytes() == oracle[:rows].tobytes(), (split, rows)


@pytest.mark.parametrize("low_bit", ["sym_int4", "q4_k", "fp16"])
@pytest.mark.parametrize("model", MODELS)
def test_models_give_the_native_engines_logits(large: Device, model: str, low_bit: str) -> None:
    """Every kernel over weights, with heads and norms by the last work-groups where these are counted."""
    spec = make_spec(**MODELS[model])
    native, engine = both(spec, large, low_bit)
    tokens = ids_of(native, 40)
    pairs = [(one, one.new_cache()) for one in (engine, native)]
    for rows in (17, *ROWS):
        got, expected = (run(one, cache, tokens[:rows]) for one, cache in pairs)
        assert got.tobytes() == expected.tobytes(), rows
        for _, cache in pairs:
            cache.keep(range(rows))


@pytest.mark.parametrize(
    ("concurrency", "name", "low_bit", "rows", "tiles", "split"),
    [
        (1, "linear", "sym_int4", 1, 256, 1),  # a CPU
        (1280, "linear", "sym_int4", 1, 256, 16),  # Arc B580: o, q k v, lm_head of a 7B
        (1280, "linear", "sym_int4", 1, 768, 4),
        (1280, "linear", "sym_int4", 1, 2000, 1),
        (1280, "linear", "sym_int4", 128, 256, 1),  # a prompt fills it with rows
        (1280, "linear", "fp16", 1, 256, 4),  # four sums, and no more
        (1280, "gate_up", "sym_int4", 1, 688, 1),
        (4096, "gate_up", "sym_int4", 1, 688, 4),  # Arc A770
        (16896, "linear", "sym_int4", 128, 256, 16),
    ],
)
def test_few_tiles_are_split_more(
    device: Device, concurrency: int, name: str, low_bit: str, rows: int, tiles: int, split: int
) -> None:
    matrix = Matrix.upload(device, [make_weight(low_bit, 16, 32, seed=0)], [None])
    before, device.concurrency = device.concurrency, concurrency
    try:
        assert matrix.split(name, rows, tiles) == split
    finally:
        device.concurrency = before


def test_a_cpu_takes_one_lane_group_after_another(device: Device) -> None:
    assert (device.concurrency == 1) is not device.is_gpu
