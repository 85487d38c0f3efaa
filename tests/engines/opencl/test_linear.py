"""Linear layers on an OpenCL device: the bytes of the scalar core, for every format, shape and number of rows."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.opencl.device import Device, device_of
from ipex_lookahead.engines.opencl.linear import LANES, Matrix, Product
from ipex_lookahead.engines.opencl.programs import DOT, SUBGROUPS, Units, rows_of
from ipex_lookahead.engines.opencl.step import HEADER, RECORD
from ipex_lookahead.formats import FORMATS, dequantize
from ipex_lookahead.formats.base import PackedWeight
from tests.engines.native.test_kernels import SHAPES, WITH_GROUPS, linear, make_weight
from tests.engines.opencl.conftest import need

i32, f32 = np.int32, np.float32


def on_device(matrix: Matrix, x: np.ndarray, start: np.ndarray | None = None, at_once: int | None = None) -> np.ndarray:
    """x W^T + bias; with ``start`` added to it."""
    return Product(matrix, x, start, at_once).result()


def activations(rows: int, n: int, seed: int = 0) -> np.ndarray:
    """Normal values, with rows of zeros, of tiny and of huge values among them."""
    x = np.random.default_rng(seed).standard_normal((rows, n), dtype=f32)
    for i, scale in enumerate((0.0, 1e-38, 1e-20, 1e4, 1e30)):
        if rows > i + 1:
            x[i + 1] *= f32(scale)
    return x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("name", "group"), WITH_GROUPS)
@pytest.mark.rotating(110)
def test_bytes_are_the_scalar_cores(device: Device, name: str, group: int, shape: tuple[int, int]) -> None:
    x = activations(17, shape[1])
    for seed in (2 * shape[1], 2 * shape[1] + 1):  # quantised weights, then any codes and scales
        weight = make_weight(name, *shape, group=group, seed=seed)
        bias = np.random.default_rng(seed).standard_normal(shape[0], dtype=f32)
        for given in (None, bias):
            matrix = Matrix.upload(device, [weight], [given])
            assert matrix.weights()[0].codes.tobytes() == weight.codes.tobytes()
            oracle = linear(weight, x, isa="scalar", bias=given)
            for at_once in rows_of(name, Units(16)):
                assert on_device(matrix, x, at_once=at_once).tobytes() == oracle.tobytes(), at_once


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.rotating(20)
def test_any_number_of_rows_gives_the_same_bytes(device: Device, name: str) -> None:
    weight = make_weight(name, 33, 576, seed=3)
    x = activations(65, 576)
    oracle = linear(weight, x, isa="scalar")
    matrix = Matrix.upload(device, [weight], [None])
    for rows in (*range(1, 19), 31, 32, 33, 65):
        assert on_device(matrix, x[:rows]).tobytes() == oracle[:rows].tobytes(), rows


@pytest.mark.parametrize("spelling", [(SUBGROUPS, DOT), (DOT,), (SUBGROUPS,)], ids=" ".join)
def test_spellings_that_are_not_the_best_here(spelling: tuple[str, ...]) -> None:
    need(device_of(None), *spelling)
    device, x = device_of(None, spelling), activations(17, 352)
    for name, low_bit in FORMATS.items():
        weight = make_weight(name, 33, 352, group=low_bit.group_sizes[0] or 32, seed=1)
        oracle = linear(weight, x, isa="scalar").tobytes()
        assert on_device(Matrix.upload(device, [weight], [None]), x).tobytes() == oracle, name


@pytest.mark.parametrize("name", ["sym_int4", "q6_k", "bf16", "nf4"])
def test_what_is_there_is_added_to(device: Device, name: str) -> None:
    weight, x = make_weight(name, 40, 96, seed=5), activations(5, 96)
    start = np.random.default_rng(1).standard_normal((5, 40), dtype=f32)
    bias = np.random.default_rng(2).standard_normal(40, dtype=f32)
    oracle = start + linear(weight, x, isa="scalar", bias=bias)
    assert on_device(Matrix.upload(device, [weight], [bias]), x, start).tobytes() == oracle.tobytes()


@pytest.mark.parametrize("name", ["sym_int4", "q3_k", "fp16"])
def test_matrices_one_below_the_other(device: Device, name: str) -> None:
    weights = [make_weight(name, n, 288, seed=n) for n in (40, 16, 17)]
    biases = [None, np.ones(16, f32), None]
    matrix, x = Matrix.upload(device, weights, biases), activations(3, 288)
    got = on_device(matrix, x)
    for first, weight, bias in zip((0, 48, 64), weights, biases, strict=True):
        oracle = linear(weight, x, isa="scalar", bias=bias)
        assert got[:, first : first + weight.shape[0]].tobytes() == oracle.tobytes()
    assert (got[:, 40:48] == 0).all()
    for weight, again in zip(weights, matrix.weights(), strict=True):
        assert same(weight, again)


def same(one: PackedWeight, other: PackedWeight) -> bool:
    streams = [(name, array.tobytes()) for name, array in one.arrays()]
    return one.shape == other.shape and streams == [(name, array.tobytes()) for name, array in other.arrays()]


@pytest.mark.parametrize(("name", "group"), WITH_GROUPS)
@pytest.mark.rotating(26)
def test_embeddings_are_the_rows_of_the_matrix(device: Device, name: str, group: int) -> None:
    for shape in ((31, 95), (48, 172), (100, 512)):
        for seed in (0, 1):
            weight = make_weight(name, *shape, group=group, seed=seed)
            matrix = Matrix.upload(device, [weight], [None])
            tokens = np.random.default_rng(0).integers(0, shape[0], 9)
            step = np.zeros(HEADER + RECORD * len(tokens), np.int32)
            step[0], step[HEADER::RECORD] = len(tokens), tokens
            out = device.upload(np.zeros((len(tokens), shape[1]), f32))
            arguments = (device.upload(step), out, i32(shape[1]), f32(0.5))
            kernel = matrix.kernel("embed", 1, *matrix.arguments(), *arguments)
            device.enqueue(kernel, -(-shape[1] // 32 // LANES) + 1, len(tokens))
            oracle = dequantize(weight)[tokens] * f32(0.5)
            assert device.read(out, oracle.shape, f32).tobytes() == oracle.tobytes()


@pytest.mark.parametrize("name", ["sym_int4", "q2_k", "fp8_e4m3"])
def test_what_is_not_finite_reaches_the_output(device: Device, name: str) -> None:
    weight, x = make_weight(name, 16, 256, seed=0), activations(4, 256)
    for row, value in enumerate((np.nan, np.inf, -np.inf)):
        x[row, 40] = value
    got = on_device(Matrix.upload(device, [weight], [None]), x)
    assert not np.isfinite(got[:3]).any()
    assert np.isfinite(got[3]).all()
