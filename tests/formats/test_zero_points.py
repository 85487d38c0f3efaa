"""Formats with a zero point for each group, and those with float32 scales: exact values, errors, bad streams."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats import FORMATS, PackedWeight, dequantize, quantize
from ipex_lookahead.formats.table import BLOCK_FORMATS
from ipex_lookahead.formats.zero_points import ZERO_GROUP_SIZES, pack_codes

NAMES = {"zero_int4": 4, "zero_int8": 8}


def fp32(values: Any) -> PackedWeight:
    values = np.ascontiguousarray(values, np.float32)
    return PackedWeight("fp32", values.shape, values)


def gaussian(n_out: int, n_in: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n_out, n_in)).astype(np.float32) * np.float32(0.05)


@pytest.mark.parametrize("group_size", ZERO_GROUP_SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_values_are_scale_times_code_less_zero_without_rounding(name: str, group_size: int) -> None:
    rng, bits = np.random.default_rng(group_size), NAMES[name]
    n_out, n_in = 5, 172
    groups = -(-n_in // group_size)
    codes = rng.integers(0, 1 << bits, (n_out, n_in)).astype(np.uint8)
    scales = (rng.integers(0, 0x7C00, (n_out, groups)) | rng.integers(0, 2, (n_out, groups)) << 15).astype(np.uint16)
    zeros = rng.integers(0, (1 << bits) + 1, (n_out, groups))
    weight = PackedWeight(
        name, (n_out, n_in), pack_codes(codes, FORMATS[name].streams[0], 0), group_size, scales,
        zeros.astype(np.float16).view(np.uint16),
    )  # fmt: skip
    got = dequantize(weight)
    for row in range(n_out):
        for i in range(n_in):
            scale = Fraction(float(scales.view(np.float16)[row, i // group_size]))
            expected = scale * (int(codes[row, i]) - int(zeros[row, i // group_size]))
            assert Fraction(float(got[row, i])) == expected


@settings(max_examples=60, deadline=None)
@given(
    n_out=st.integers(1, 4),
    n_in=st.integers(1, 300),
    name=st.sampled_from(sorted(NAMES)),
    group_size=st.sampled_from(ZERO_GROUP_SIZES),
    exponent=st.integers(-12, 6),
    shift=st.floats(-3, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_errors_are_at_most_one_scale_and_what_is_cut_off(
    n_out: int, n_in: int, name: str, group_size: int, exponent: int, shift: float, seed: int
) -> None:
    """Half a scale from the code, half from the zero point; a fifth of the range may be given up for the rest of it."""
    values = ((np.random.default_rng(seed).standard_normal((n_out, n_in)) + shift) * 2.0**exponent).astype(np.float32)
    packed = quantize(fp32(values), name, group_size)
    scale = np.repeat(packed.scales.view(np.float16).astype(np.float64), group_size, axis=1)[:, :n_in]
    most = (1 << NAMES[name]) - 1
    bound = scale * (1.3 + most * 0.27) + most * 2.0**-24
    assert (np.abs(dequantize(packed) - values) <= bound).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_search_loses_less_than_least_and_largest_value_alone(name: str) -> None:
    weight, most = gaussian(64, 512), (1 << NAMES[name]) - 1
    groups = weight.reshape(64, -1, 32)
    low, high = (np.minimum(groups.min(-1), 0)[..., None], np.maximum(groups.max(-1), 0)[..., None])
    scale = ((high - low) / most).astype(np.float16).astype(np.float32)
    zero = np.rint(-low / scale)
    plain = scale * (np.clip(np.rint(groups / scale) + zero, 0, most) - zero)
    ours = dequantize(quantize(fp32(weight), name)).reshape(groups.shape)
    assert np.square(ours - groups).mean() < np.square(plain - groups).mean()


@pytest.mark.parametrize(("name", "floor"), [("zero_int4", 19.0), ("zero_int8", 43.0)])
def test_signal_to_noise(name: str, floor: float) -> None:
    weight = gaussian(256, 512)
    noise = dequantize(quantize(fp32(weight), name)) - weight
    assert 10 * np.log10(np.square(weight, dtype=np.float64).sum() / np.square(noise, dtype=np.float64).sum()) > floor


@pytest.mark.parametrize("name", NAMES)
def test_misfits_are_refused(name: str) -> None:
    with pytest.raises(LowBitFormatError, match="group_size is 48; it must be 32, 64, 128, 1024"):
        quantize(fp32(gaussian(2, 96)), name, 48)
    with pytest.raises(LowBitFormatError, match="matrices"):
        quantize(fp32(np.zeros(8)), name)
    with pytest.raises(LowBitFormatError, match=r"row 1, group 1: the scale would be .*65504"):
        quantize(fp32([[0.0] * 64, [0.0] * 63 + [1e9]]), name)
    good = quantize(fp32(gaussian(4, 100)), name)
    for change in ({"minimums": None}, {"scales": good.scales[:, :-1]}, {"group_size": 256}, {"codes": good.codes[:3]}):
        with pytest.raises(LowBitFormatError):
            dequantize(replace(good, **change))


@pytest.mark.parametrize("name", NAMES)
def test_a_zero_point_that_is_none_is_found(name: str) -> None:
    low_bit, most = FORMATS[name], 1 << NAMES[name]
    good = np.array([[0, 1, most]], np.float16).view(np.uint16)
    assert low_bit.bad_scale("minimums", good) is None
    for value in (-1, 0.5, most + 1, np.nan, np.inf):
        bad = low_bit.bad_scale("minimums", np.array([[1, value, 2]], np.float16).view(np.uint16))
        assert bad is not None
        assert bad.index == 1
        assert "zero point" in bad.what
    bad = low_bit.bad_scale("scales", np.array([[1, np.inf]], np.float16).view(np.uint16))
    assert bad is not None
    assert bad.index == 1


@pytest.mark.parametrize("name", ["bnb_nf4", "bnb_fp4", "sym_int8_fp32"])
def test_a_float32_scale_is_kept_to_the_last_bit(name: str) -> None:
    rng = np.random.default_rng(4)
    low_bit: Any = FORMATS[name]
    codes = rng.integers(0, len(low_bit.table), (7, 172)).astype(np.uint8)
    scales = rng.standard_normal((7, 3)).astype(np.float32) * np.float32(1e-7)
    table = np.array(low_bit.table, np.float32)
    expected = table[codes] * np.repeat(scales, 64, axis=1)[:, :172]
    assert np.array_equal(dequantize(BLOCK_FORMATS[name].matrix(codes, scales)), expected)
