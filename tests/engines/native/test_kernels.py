"""Linear layers of the native core: right, and bit for bit the same for any rows, threads and ISA."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.formats import FLOATS, dequantize, quantize
from ipex_lookahead.formats import FORMATS as ALL
from ipex_lookahead.formats.base import PackedWeight
from tests.gates import large

native = pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

ISAS = native.available_isas()
FORMATS = list(ALL)
FLOAT_ACTIVATIONS = (*FLOATS, "bnb_nf4", "bnb_fp4", "nf4", "nf3", "fp6", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fp32")
WITH_GROUPS = [(name, group) for name, low_bit in ALL.items() for group in low_bit.group_sizes]
SHAPES = [(16, 32), (1, 1), (17, 33), (105, 128), (48, 172), (64, 352), (33, 576), (31, 95)]


def make_weight(name: str, n_out: int, n_in: int, group: int = 32, seed: int = 0) -> PackedWeight:
    rng = np.random.default_rng(seed)
    if name not in FLOATS and seed % 2:
        return ALL[name].random((n_out, n_in), group, rng)  # every code, step and sign
    plain = PackedWeight("fp32", (n_out, n_in), rng.standard_normal((n_out, n_in), dtype=np.float32))
    return quantize(plain, name, group)


def probe_of(weight: PackedWeight, *, isa: str, threads: int, bias: np.ndarray | None = None) -> Any:
    return native.LinearLayer(
        native.LinearPool(threads, isa),
        weight.format,
        *weight.shape,
        weight.group_size,
        weight.codes,
        weight.scales,
        weight.minimums,
        bias,
    )


def linear(
    weight: PackedWeight, x: np.ndarray, *, isa: str, threads: int = 1, bias: np.ndarray | None = None
) -> np.ndarray:
    return probe_of(weight, isa=isa, threads=threads, bias=bias)(np.ascontiguousarray(x, dtype=np.float32))


def quantized_activations(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The activation rule restated in numpy: int8 codes and a float32 scale a row and group of 32."""
    rows, n_in = x.shape
    blocks = -(-n_in // 32)
    padded = np.zeros((rows, blocks * 32), dtype=np.float32)
    padded[:, :n_in] = x
    groups = padded.reshape(rows, blocks, 32)
    largest = np.abs(groups).max(axis=2)
    inverse = np.where(largest > 1e-30, np.float32(127) / np.maximum(largest, np.float32(1e-30)), 0).astype(np.float32)
    codes = np.rint(groups * inverse[:, :, None]).astype(np.int64)
    scales = np.where(largest > 1e-30, largest / np.float32(127), 0).astype(np.float32)
    return codes, scales


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.rotating(60)
def test_linear_agrees_with_dequantised_weights(name: str, shape: tuple[int, int]) -> None:
    """Against a float64 product with the activations and weights that the codes stand for.

    On the scalar kernels: the other instruction sets give their bytes, as the tests below show.
    """
    n_out, n_in = shape
    weight = make_weight(name, n_out, n_in, seed=n_in)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5, n_in), dtype=np.float32)
    bias = rng.standard_normal(n_out, dtype=np.float32)
    got = linear(weight, x, isa="scalar", bias=bias)
    if name in FLOAT_ACTIVATIONS:
        seen = x.astype(np.float64)
    else:
        codes, scales = quantized_activations(x)
        seen = (codes * scales[:, :, None].astype(np.float64)).reshape(5, -1)[:, :n_in]
    dense = dequantize(weight).astype(np.float64)
    expected = seen @ dense.T + bias
    bound = np.abs(seen) @ np.abs(dense).T + np.abs(bias)  # rounding errors scale with the sum of magnitudes
    assert (np.abs(got - expected) <= (n_in / 8 + 4) * 2.0**-23 * bound).all()


def test_one_group_is_exact() -> None:
    """One output, one group: the float32 result is the correctly rounded product of exact integers and scales."""
    weight = make_weight("sym_int4", 1, 32, seed=3)
    x = np.random.default_rng(4).standard_normal((1, 32), dtype=np.float32)
    codes, scales = quantized_activations(x)
    w = dequantize(weight).astype(np.float64)[0]
    scale = float(weight.scales.view(np.float16)[0, 0])
    dot = sum(int(c) * round(v / scale) for c, v in zip(codes[0, 0], w, strict=True))
    expected = np.float32(float(Fraction(dot) * Fraction(float(np.float32(scale) * scales[0, 0]))))
    assert linear(weight, x, isa="scalar")[0, 0] == expected


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [name for name in FLOAT_ACTIVATIONS if name not in FLOATS])
@pytest.mark.rotating(16)
def test_every_code_is_the_number_that_it_stands_for(name: str, isa: str) -> None:
    """One input at a time, so that the smallest numbers, subnormals, show beside the largest."""
    weight = ALL[name].random((128, 64), 64, np.random.default_rng(0))
    values = dequantize(weight)
    low_bit: Any = ALL[name]
    assert len(np.unique(values)) == len(np.unique(low_bit.table))
    np.testing.assert_array_equal(linear(weight, np.eye(64), isa=isa).T, values)


@pytest.mark.parametrize(("name", "group"), WITH_GROUPS)
@pytest.mark.parametrize("shape", [(17, 33), (48, 172), (105, 128), (33, 576)], ids=str)
@pytest.mark.rotating(40)
def test_every_isa_thread_count_and_number_of_rows_gives_the_same_bytes(
    name: str, group: int, shape: tuple[int, int]
) -> None:
    """The oracle is scalar, one thread, each row alone."""
    weight = make_weight(name, *shape, group=group, seed=shape[1])
    x = np.random.default_rng(shape[0]).standard_normal((257, shape[1]), dtype=np.float32)
    bias = np.random.default_rng(1).standard_normal(shape[0], dtype=np.float32)
    scalar = probe_of(weight, isa="scalar", threads=1, bias=bias)
    oracle = np.concatenate([scalar(row[None]) for row in x])
    for isa in ISAS:
        for threads in (1, 2, 3, 5) if large() else (1, 3):
            probe = probe_of(weight, isa=isa, threads=threads, bias=bias)
            for rows in (*range(1, 18), 33, 36, 43, 64, 257):
                assert probe(x[:rows]).tobytes() == oracle[:rows].tobytes(), (isa, threads, rows)


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("name", [name for name, low_bit in ALL.items() if hasattr(low_bit, "record")])
@pytest.mark.rotating(22)
def test_the_largest_codes_and_steps_are_the_same_on_every_isa(name: str, byte: int) -> None:
    """Whole numbers at their bounds: whatever adds them in 16 bits, or in a float's 24, must hold them."""
    weight = make_weight(name, 19, 512, seed=1)
    records = weight.codes.copy().view(ALL[name].record)
    for field in set(records.dtype.names) - {"scale", "minimum"}:
        records[field].view(np.uint8)[...] = byte
    weight = PackedWeight(name, weight.shape, records.view(np.uint8).reshape(weight.codes.shape))
    signs = [np.ones(512), np.tile([1] * 16 + [-1] * 16, 16), np.tile([1, -1], 256), np.tile([-1] * 8 + [1] * 24, 16)]
    x = np.array([sign * way for sign in signs for way in (1, -1)], np.float32)
    oracle = linear(weight, x, isa="scalar")
    exact = x.astype(np.float64) @ dequantize(weight).astype(np.float64).T
    assert np.abs(oracle - exact).max() <= 1e-5 * np.abs(dequantize(weight)).sum(axis=1, dtype=np.float64).max()
    for isa in ISAS:
        assert linear(weight, x, isa=isa).tobytes() == oracle.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    n_out=st.integers(1, 70),
    n_in=st.integers(1, 200),
    rows=st.integers(1, 20),
    threads=st.integers(1, 4),
    scale=st.sampled_from([0.0, 1e-38, 1e-20, 1e-3, 1.0, 1e4, 1e30]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_magnitude_is_the_same_on_every_isa(
    name: str, n_out: int, n_in: int, rows: int, threads: int, scale: float, seed: int
) -> None:
    weight = make_weight(name, n_out, n_in, seed=seed)
    x = np.random.default_rng(seed).standard_normal((rows, n_in), dtype=np.float32) * np.float32(scale)
    oracle = linear(weight, x, isa="scalar")
    assert oracle.shape == (rows, n_out)
    for isa in ISAS:
        assert linear(weight, x, isa=isa, threads=threads).tobytes() == oracle.tobytes()


def test_wrong_shapes_are_refused_before_anything_is_read() -> None:
    weight = make_weight("sym_int4", 16, 64)
    with pytest.raises(ValueError, match="codes"):
        native.LinearLayer(native.LinearPool(1), "sym_int4", 16, 96, 32, weight.codes, weight.scales, None, None)
    with pytest.raises(ValueError, match="scales"):
        native.LinearLayer(native.LinearPool(1), "sym_int4", 16, 64, 32, weight.codes, weight.scales[:8], None, None)
    with pytest.raises(ValueError, match="scales"):
        native.LinearLayer(native.LinearPool(1), "asym_int4", 16, 64, 32, weight.codes, weight.scales, None, None)
    with pytest.raises(ValueError, match="group size"):
        native.LinearLayer(native.LinearPool(1), "sym_int4", 16, 64, 48, weight.codes, weight.scales, None, None)
    with pytest.raises(ValueError, match="no kernel"):
        native.LinearLayer(native.LinearPool(1), "nf9", 16, 64, 32, weight.codes, weight.scales, None, None)
    with pytest.raises(ValueError, match="not known"):
        native.LinearLayer(
            native.LinearPool(1, "avx9"), "sym_int4", 16, 64, 32, weight.codes, weight.scales, None, None
        )
    probe = native.LinearLayer(native.LinearPool(1), "sym_int4", 16, 64, 32, weight.codes, weight.scales, None, None)
    with pytest.raises(ValueError, match="n_in"):
        probe(np.zeros((1, 63), dtype=np.float32))
