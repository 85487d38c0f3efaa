"""The low-bit formats against their definitions, an independent oracle, and bad input."""

from __future__ import annotations

from unittest.mock import patch

import gguf
import numpy as np
import pytest
from gguf import quants

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats import FLOATS, FORMATS, PackedWeight, dequantize, get_format, quantize
from ipex_lookahead.formats.base import STREAMS
from ipex_lookahead.formats.float_base import from_binary16, narrow
from ipex_lookahead.low_bits import LOW_BITS

INTEGER = ("sym_int4", "asym_int4", "sym_int8")
RAGGED = (1, 2, 31, 32, 33, 63, 64, 65, 96, 172, 352)


def fp32(values) -> PackedWeight:
    values = np.ascontiguousarray(values, np.float32)
    return PackedWeight("fp32", values.shape, values)


def gaussian(n_out: int, n_in: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n_out, n_in)).astype(np.float32) * np.float32(0.05)


def per_input(stored: np.ndarray, weight: PackedWeight) -> np.ndarray:
    return np.repeat(from_binary16(stored), weight.group_size, axis=1)[:, : weight.shape[1]]


def test_registry_names_are_the_keys():
    assert list(FORMATS) == list(LOW_BITS)
    assert FLOATS == ("fp16", "bf16", "fp32")
    for name, low_bit in FORMATS.items():
        assert get_format(name) is low_bit
        assert low_bit.name == name
        assert [stream.name for stream in low_bit.streams] == list(STREAMS[: len(low_bit.streams)])


def test_unknown_name_lists_the_known():
    with pytest.raises(LowBitFormatError, match=r"'nf9'.*sym_int4, asym_int4, sym_int8, .*fp16, bf16, fp32"):
        get_format("nf9")
    with pytest.raises(LowBitFormatError, match="unknown low-bit format None"):
        quantize(fp32([[1.0]]), None)


@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("n_in", RAGGED)
@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.rotating(33)
def test_exactly_representable_weights_come_back_unchanged(name, n_in, group_size):
    rng = np.random.default_rng(n_in)
    low, high = {"sym_int4": (-8, 7), "asym_int4": (0, 15), "sym_int8": (-127, 127)}[name]
    codes = rng.integers(low, high + 1, (5, n_in))
    codes[:, ::group_size] = low  # every group reaches the end of its range, which fixes its scale
    if n_in > 1:
        codes[:, 1::group_size] = high
    weight = fp32(codes * 0.25 - (1.5 if name == "asym_int4" else 0))
    if name == "asym_int4" and n_in % group_size == 1:
        weight.codes[:, -1] = -1.5  # a group of one value is its own minimum
    assert np.array_equal(dequantize(quantize(weight, name, group_size)), weight.codes)


@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("n_in", RAGGED)
@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.rotating(33)
def test_codes_are_those_of_the_nearest_values(name, n_in, group_size):
    weight = fp32(gaussian(64, n_in, seed=n_in))
    packed = quantize(weight, name, group_size)
    assert packed.shape == weight.shape
    assert packed.group_size == group_size
    scale = per_input(packed.scales, packed)
    minimum = 0.0 if packed.minimums is None else per_input(packed.minimums, packed)
    low, high = {"sym_int4": (-8, 7), "asym_int4": (0, 15), "sym_int8": (-127, 127)}[name]
    nearest = np.clip(np.rint((weight.codes - minimum) / np.where(scale == 0, 1, scale)), low, high)
    least = np.abs(nearest * scale + minimum - weight.codes)
    assert (np.abs(dequantize(packed) - weight.codes) <= least + 1e-4 * np.abs(scale)).all()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sym_int4", gguf.GGMLQuantizationType.Q4_0),
        ("asym_int4", gguf.GGMLQuantizationType.Q4_1),
        ("sym_int8", gguf.GGMLQuantizationType.Q8_0),
    ],
)
def test_dequantize_equals_the_gguf_package(name, kind):
    """Blocks of random bits (all codes, any finite scale) mean the same to both."""
    rng = np.random.default_rng(7)
    n_out, blocks = 40, 9
    scales = rng.integers(0, 0x7C00, (n_out, blocks)).astype(np.uint16) | (
        rng.integers(0, 2, (n_out, blocks)).astype(np.uint16) << 15
    )
    minimums = rng.permutation(scales.ravel()).reshape(scales.shape) if name == "asym_int4" else None
    codes = rng.integers(0, 256, (n_out, blocks, 32 if name == "sym_int8" else 16)).astype(np.uint8)
    head = [scales[..., None].view(np.uint8)] + ([] if minimums is None else [minimums[..., None].view(np.uint8)])
    expected = quants.dequantize(np.concatenate([*head, codes], axis=2).reshape(n_out, -1), kind)
    stored = codes.reshape(n_out, -1)
    packed = PackedWeight(
        name, (n_out, blocks * 32), stored.view(np.int8) if name == "sym_int8" else stored, 32, scales, minimums
    )
    assert np.array_equal(dequantize(packed).view(np.uint32), expected.view(np.uint32))


def test_the_first_of_two_extremes_decides_the_sign():
    for values, sign in (([1.0, -1.0], -1), ([-1.0, 1.0], 1)):
        packed = quantize(fp32([values]), "sym_int4")
        assert np.sign(from_binary16(packed.scales))[0, 0] == sign


@pytest.mark.parametrize("n_in", [1, 33, 47])
@pytest.mark.parametrize(("name", "padding"), [("sym_int4", 0x88), ("asym_int4", 0), ("sym_int8", 0)])
def test_padding_has_the_code_of_zero(name, padding, n_in):
    packed = quantize(fp32(gaussian(3, n_in)), name, 64)
    last = n_in % 32
    block = packed.codes.view(np.uint8)[:, -16:] if name != "sym_int8" else packed.codes.view(np.uint8)[:, -32:]
    if name == "sym_int8":
        assert (block[:, last:] == padding).all()
    elif last >= 16:
        assert (block[:, last - 16 :] & 0xF0 == padding & 0xF0).all()
    else:
        assert (block & 0xF0 == padding & 0xF0).all()
        assert (block[:, last:] & 15 == padding & 15).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.rotating(60)
def test_nan_and_infinity_are_refused_by_name(name, kind, bad):
    values = gaussian(5, 50)
    codes = narrow(values, kind)
    codes[3, 41] = bad if kind == "fp32" else {"fp16": 0x7C00, "bf16": 0x7F80}[kind] | (1 if np.isnan(bad) else 0)
    with pytest.raises(LowBitFormatError, match=r"row 3, column 41 is (nan|-?inf)"):
        quantize(PackedWeight(kind, values.shape, codes), name)


def test_float_formats_round_to_nearest_even():
    import torch

    rng = np.random.default_rng(3)
    values = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    for name, dtype, limit in (("fp16", torch.float16, 65519.0), ("bf16", torch.bfloat16, 3.3e38)):
        fit = values[np.abs(values) <= limit]
        expected = torch.from_numpy(fit.copy()).to(dtype)
        packed = quantize(fp32(fit), name)
        assert packed.codes.dtype == np.uint16
        assert np.array_equal(packed.codes, expected.view(torch.int16).numpy().view(np.uint16))
        assert np.array_equal(dequantize(packed), expected.float().numpy())


def test_float_formats_are_the_identity_on_themselves_and_keep_vectors():
    for name in ("fp32", "fp16", "bf16"):
        weight = PackedWeight(name, (7,), narrow(gaussian(1, 7)[0], name))
        assert quantize(weight, name) is weight
        assert dequantize(quantize(weight, "fp32")).shape == (7,)
    half = PackedWeight("fp16", (3,), np.array([0x0001, 0x83FF, 0x7BFF], np.uint16))
    assert dequantize(half).tolist() == [2.0**-24, -1023 * 2.0**-24, 65504.0]


def test_float_overflow_is_refused():
    with pytest.raises(LowBitFormatError, match=r"row 0, column 1 is 65520, beyond the range of fp16"):
        quantize(fp32([[65519.0, 65520.0]]), "fp16")
    with pytest.raises(LowBitFormatError, match=r"beyond the range of bf16"):
        quantize(fp32([[3.4e38]]), "bf16")


def test_a_quantised_weight_is_kept_and_never_requantised():
    packed = quantize(fp32(gaussian(2, 64)), "sym_int4", 64)
    assert quantize(packed, "sym_int4", 64) is packed
    for name, group_size in (("sym_int8", 32), ("fp32", 32), ("sym_int4", 32)):
        with pytest.raises(LowBitFormatError, match="the weight is in 'sym_int4'"):
            quantize(packed, name, group_size)


@pytest.mark.parametrize("name", INTEGER)
def test_misfits_are_refused(name):
    with pytest.raises(LowBitFormatError, match="group_size is 48; it must be 32, 64"):
        quantize(fp32(gaussian(2, 96)), name, 48)
    for shape in ((8,), (2, 2, 2), (0, 4), (4, 0)):
        with pytest.raises(LowBitFormatError, match="matrices"):
            quantize(fp32(np.zeros(shape)), name)
    with pytest.raises(LowBitFormatError, match="float64"):
        quantize(PackedWeight("fp32", (1, 1), np.zeros((1, 1), np.float64)), name)
    with pytest.raises(LowBitFormatError, match=r"\[2, 3\]"):
        quantize(PackedWeight("fp32", (3, 2), np.zeros((2, 3), np.float32)), name)


@pytest.mark.parametrize("name", INTEGER)
def test_streams_that_contradict_the_shape_are_refused(name):
    good = quantize(fp32(gaussian(4, 100)), name)
    fields = {"format": name, "shape": good.shape, "group_size": 32, "scales": good.scales, "minimums": good.minimums}
    for change in (
        {"codes": good.codes[:, :-1]},
        {"codes": good.codes.astype(np.int32)},
        {"scales": None},
        {"scales": good.scales[:, :-1]},
        {"scales": good.scales.astype(np.float16)},
        {"shape": (4, 65)},
        {"group_size": 64},
        {"group_size": 0},
        *([{"minimums": None}] if name == "asym_int4" else []),
    ):
        with pytest.raises(LowBitFormatError):
            dequantize(PackedWeight(**{**fields, "codes": good.codes, **change}))


@pytest.mark.parametrize("name", INTEGER)
def test_large_matrices_are_worked_through_in_chunks_of_rows(name):
    """What the rows of a chunk give does not depend on where the chunk begins."""
    weight = gaussian(37, 172)
    whole = quantize(fp32(weight), name)
    from ipex_lookahead.formats import float_base, groups

    with patch.object(groups, "CHUNK", 1000), patch.object(float_base, "CHUNK", 1000):
        chunked = FORMATS[name].quantize(fp32(weight))
        assert np.array_equal(chunked.codes, whole.codes)
        assert np.array_equal(chunked.scales, whole.scales)
        assert np.array_equal(dequantize(chunked), dequantize(whole))
        half = quantize(fp32(weight), "fp16")
    assert np.array_equal(half.codes, quantize(fp32(weight), "fp16").codes)
