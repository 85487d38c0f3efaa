"""GGUF's block formats against the gguf package, their own inverse, and bad input."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.checkpoints.mxfp4_blocks import from_blocks_and_scales
from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats import FLOATS, FORMATS, PackedWeight, dequantize, quantize
from ipex_lookahead.formats.blocks import MAX_EXPONENT, BlockFormat, half_powers, join, split

BLOCKS = [name for name, low_bit in FORMATS.items() if isinstance(low_bit, BlockFormat)]
LOW = [*BLOCKS, "sym_int4", "asym_int4", "sym_int8"]
IN_GGUF = [name for name in BLOCKS if FORMATS[name].gguf is not None]
RAGGED = (1, 31, 32, 33, 172, 256, 257, 352, 576)


def block_format(name: str) -> BlockFormat:
    found = FORMATS[name]
    assert isinstance(found, BlockFormat)
    return found


def fp32(values: np.ndarray) -> PackedWeight:
    return PackedWeight("fp32", values.shape, np.ascontiguousarray(values, np.float32))


def gaussian(n_out: int, n_in: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n_out, n_in)).astype(np.float32) * np.float32(0.05)


def any_bits(name: str, rows: int, blocks: int) -> np.ndarray:
    """Records of random bits: every code and step, any finite scale."""
    low_bit = block_format(name)
    rng = np.random.default_rng(7)
    records = rng.integers(0, 256, (rows, blocks * low_bit.record.itemsize), np.uint8).view(low_bit.record)
    for field in ("scale", "minimum"):
        if field in (low_bit.record.names or ()):
            if records[field].dtype == np.float32:
                records[field] = rng.standard_normal(records[field].shape) * 2.0 ** rng.integers(-40, 9)
            elif records[field].dtype == np.uint8:
                records[field] = rng.integers(0, MAX_EXPONENT + 1, records[field].shape)
            else:
                sign = rng.integers(0, 2, records[field].shape) << 15
                halves = (rng.integers(0, 0x7C00, records[field].shape) | sign).astype(np.uint16)
                single = records[field].dtype == np.float32
                records[field] = halves.view(np.float16).astype(np.float32) / 3 if single else halves
    return records


def test_every_type_that_the_package_lists_has_our_sizes():
    for low_bit in FORMATS.values():
        if low_bit.gguf is None:
            continue
        kind = gguf.GGMLQuantizationType(low_bit.gguf.number)
        assert kind.name == low_bit.gguf.name
        assert gguf.GGML_QUANT_SIZES[kind] == (low_bit.gguf.inputs, low_bit.gguf.record.itemsize)


@pytest.mark.parametrize("name", IN_GGUF)
def test_dequantize_equals_the_gguf_package_to_the_last_bit(name):
    low_bit = block_format(name)
    codes = any_bits(name, 40, 9).view(np.uint8)
    expected = quants.dequantize(codes, gguf.GGMLQuantizationType(low_bit.number))
    got = dequantize(PackedWeight(name, (40, 9 * low_bit.inputs), codes))
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", BLOCKS)
def test_packing_undoes_unpacking(name):
    low_bit = block_format(name)
    records = any_bits(name, 40, 9)
    packed = low_bit.pack(low_bit.unpack(records), 9 * low_bit.inputs)
    assert packed.tobytes() == records.tobytes()


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("run", [1, 4, 16])
def test_join_undoes_split(bits, run):
    packed = np.random.default_rng(bits).integers(0, 256, (3, 48), np.uint8)
    codes = split(packed, bits, run)
    assert codes.shape == (3, 48 * 8 // bits)
    assert codes.max() == (1 << bits) - 1
    assert np.array_equal(join(codes, bits, run), packed)


LEAST_DB = {"q2_k": 10.5, "q3_k": 15.5, "q4_k": 22, "q5_k": 28, "q6_k": 34, "sym_int5": 26, "asym_int5": 28,
            "iq4_nl": 21, "iq4_xs": 21, "mxfp4": 18, "fp4": 19, "nf4": 20, "nf3": 14, "fp6": 26, "fp8_e4m3": 31,
            "fp8_e5m2": 25, "sym_int3": 13, "sym_int2": 6, "bnb_nf4": 20, "bnb_fp4": 17, "sym_int8_fp32": 41,
            "fp8_e4m3_fp32": 31, "sym_int4": 18, "asym_int4": 20, "sym_int8": 42}  # fmt: skip


@pytest.mark.parametrize("name", LOW)
@pytest.mark.rotating(11)
def test_signal_to_noise(name):
    """Floors for Gaussian weights, in dB."""
    weight = gaussian(64, 512)
    noise = dequantize(quantize(fp32(weight), name)) - weight
    ratio = 10 * np.log10(np.square(weight, dtype=np.float64).sum() / np.square(noise, dtype=np.float64).sum())
    assert ratio > LEAST_DB[name]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sym_int4", "Q4_0"), ("asym_int4", "Q4_1"), ("sym_int5", "Q5_0"), ("asym_int5", "Q5_1"), ("sym_int8", "Q8_0")],
)
def test_a_search_loses_less_than_the_largest_value_alone(name, kind):
    weight = gaussian(64, 512)
    theirs = quants.dequantize(
        quants.quantize(weight, gguf.GGMLQuantizationType[kind]), gguf.GGMLQuantizationType[kind]
    )
    ours = dequantize(quantize(fp32(weight), name))
    assert np.square(ours - weight).mean() < np.square(theirs - weight).mean()


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in FLOATS])
@pytest.mark.rotating(9)
def test_importance_moves_the_error_to_where_it_counts_less(name):
    """Inputs that count a thousand times more lose less than they do among equals, by weighted squared error too."""
    weight = gaussian(64, 512)
    importance = np.where(np.arange(512) % 8 == 0, 1000, 1).astype(np.float32)

    def lost(packed: PackedWeight) -> np.ndarray:
        return np.square(dequantize(packed) - weight).mean(axis=0)

    alike, important = lost(quantize(fp32(weight), name)), lost(quantize(fp32(weight), name, importance=importance))
    if name == "mxfp4":  # its exponent follows from the largest value: there is nothing to choose
        assert np.array_equal(alike, important)
        return
    ratio = (important * importance).mean() / (alike * importance).mean()
    assert ratio < (0.999 if name.startswith("fp") else 0.82), ratio


@pytest.mark.parametrize("name", ["sym_int4", "q4_k"])
def test_only_what_importance_says_relatively_matters(name):
    weight, importance = fp32(gaussian(8, 512)), np.random.default_rng(1).random(512, np.float32)
    some, much, none = (
        quantize(weight, name, importance=one) for one in (importance, importance * 1e30, importance * 0)
    )
    assert np.array_equal(some.codes, much.codes)
    assert np.array_equal(none.codes, quantize(weight, name).codes)


@pytest.mark.parametrize(
    ("importance", "what"),
    [
        (np.ones(511, np.float32), r"shape \[511\]; expected \[512\]"),
        (np.ones((1, 512), np.float32), "shape"),
        (np.full(512, np.nan, np.float32), "finite"),
        (np.full(512, np.inf, np.float32), "finite"),
        (np.full(512, -1, np.float32), "not negative"),
    ],
)
@pytest.mark.parametrize("name", ["sym_int4", "q4_k"])
def test_importance_that_is_none_is_refused(name, importance, what):
    with pytest.raises(LowBitFormatError, match=what):
        quantize(fp32(gaussian(2, 512)), name, importance=importance)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.rotating(11)
def test_what_the_format_holds_comes_back_nearly(name):
    """Values that are some block's own are found again but for the choice of scales: far closer than other values."""
    low_bit = block_format(name)
    held = dequantize(low_bit.random((16, 512), 0, np.random.default_rng(3)))
    found = dequantize(quantize(fp32(held), name))
    other = gaussian(16, 512) / np.float32(0.05) * held.std()
    lost = np.square(found - held).mean()
    assert lost < 0.6 * np.square(dequantize(quantize(fp32(other), name)) - other).mean()


@pytest.mark.parametrize("n_in", RAGGED)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.rotating(44)
def test_ragged_rows(name, n_in):
    """Sub-blocks that no input reaches are zero bits, and the values are finite and near."""
    low_bit = block_format(name)
    weight = gaussian(5, n_in, seed=n_in)
    packed = quantize(fp32(weight), name)
    assert packed.codes.shape == low_bit.streams[0].shape((5, n_in), 0)
    got = dequantize(packed)
    assert got.shape == weight.shape
    assert np.abs(got - weight).max() <= 0.6 * np.abs(weight).max() + 1e-6
    parts = low_bit.unpack(low_bit.records(packed.codes))
    reached = -(-n_in // 32) * 32 - (parts.codes.shape[1] - 1) * low_bit.inputs
    assert not parts.codes[:, -1, reached:].any()


@pytest.mark.parametrize("name", LOW)
def test_zeros_and_tiny_values_give_finite_values(name):
    for value in (0.0, -0.0, 1e-12, -1e-9, 1e-45):
        got = dequantize(quantize(fp32(np.full((2, 300), value)), name))
        assert np.abs(got).max() <= (2.0**-14 if name in BLOCKS else 2.0**-24)


@pytest.mark.parametrize("name", [n for n in LOW if n not in BLOCKS or block_format(n).record["scale"] == np.uint16])
def test_a_scale_beyond_binary16_is_refused(name):
    weight = gaussian(6, 300)
    weight[4, 266] = 1e13
    with pytest.raises(LowBitFormatError, match=r"row 4, group \d+: the (scale|minimum) would be .*65504"):
        quantize(fp32(weight), name)


@pytest.mark.parametrize("name", BLOCKS)
def test_misfits_are_refused(name):
    for shape in ((8,), (2, 2, 2), (0, 4), (4, 0)):
        with pytest.raises(LowBitFormatError, match="matrices"):
            quantize(fp32(np.zeros(shape)), name)
    good = quantize(fp32(gaussian(4, 300)), name)
    for change in (
        {"codes": good.codes[:, :-1]},
        {"codes": good.codes.astype(np.int32)},
        {"shape": (4, 3000)},
        {"group_size": 32},
    ):
        with pytest.raises(LowBitFormatError):
            dequantize(PackedWeight(**{"format": name, "shape": good.shape, "codes": good.codes, **change}))
    assert quantize(good, name, 64) is good
    with pytest.raises(LowBitFormatError, match="the weight is in"):
        quantize(good, "sym_int4")


@pytest.mark.parametrize("name", BLOCKS)
def test_a_scale_that_is_no_number_is_found(name):
    low_bit = block_format(name)
    records = any_bits(name, 3, 4)
    assert low_bit.bad_scale("codes", records.view(np.uint8)) is None
    bad = {1: np.uint8(253), 2: np.uint16(0x7E00), 4: np.float32(1e37)}[records["scale"].dtype.itemsize]
    records["scale"][2, 1] = bad
    found = low_bit.bad_scale("codes", records.view(np.uint8))
    assert found is not None
    assert records.view(np.uint8).reshape(-1)[found.index :][: bad.nbytes].tobytes() == bad.tobytes()
    assert found.index // low_bit.record.itemsize == 9


@settings(max_examples=90, deadline=None)
@given(
    n_out=st.integers(1, 3),
    n_in=st.integers(1, 600),
    name=st.sampled_from(LOW),
    group_size=st.sampled_from([32, 64]),
    exponent=st.integers(-30, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_finite_weight_gives_finite_values_near_it(n_out, n_in, name, group_size, exponent, seed):
    """Within a step of the format, and where a scale is a subnormal binary16, half its unit times the code."""
    rng = np.random.default_rng(seed)
    exponent = min(exponent, 3) if name == "fp6" else exponent  # its values end at 447
    values = (rng.standard_normal((n_out, n_in)) * 2.0 ** (exponent + rng.integers(-3, 4, (n_out, n_in)))).astype("f4")
    restored = dequantize(quantize(fp32(values), name, group_size))
    assert restored.shape == values.shape
    assert np.isfinite(restored).all()
    near = np.abs(values).max() * 0.6 + 2.0**-12 if name in BLOCKS else np.abs(values).max() * 0.13 + 127 * 2.0**-25
    assert np.abs(restored - values).max() <= near + 1e-7


# ---- floats of few bits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), [("fp8_e4m3", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2")])
def test_eight_bit_floats_are_torchs(name, dtype):
    import torch

    expected = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float().numpy()
    ours = np.array(block_format(name).table, np.float32)
    finite = np.isfinite(expected)
    assert np.array_equal(ours[finite], expected[finite])
    assert finite.sum() == {"fp8_e4m3": 254, "fp8_e5m2": 248}[name]
    made = block_format(name).unpack(block_format(name).records(quantize(fp32(gaussian(64, 512)), name).codes)).codes
    assert finite[made].all()


def test_six_bit_floats_by_their_definition():
    ours = [4096 * number for number in block_format("fp6").table or ()]
    assert ours[:8] == [0.0, 0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375]
    assert (ours[8], ours[31], ours[63]) == (0.5, 28.0, -28.0)


@pytest.mark.parametrize(("name", "shift"), [("fp6", 8), ("fp8_e4m3_fp32", 7)])
def test_the_exponent_has_the_bias_of_binary16(name, shift):
    """A code, its sign aside, is the bits of a binary16 from bit ``shift`` on."""
    numbers = np.array(block_format(name).table, np.float32)
    half = len(numbers) // 2
    assert np.array_equal(numbers[:half], (np.arange(half, dtype=np.uint16) << shift).view(np.float16))
    assert np.array_equal(numbers[half:], -numbers[:half])


# ---- mxfp4 -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(exponent=st.integers(-60, 60), seed=st.integers(0, 2**32 - 1))
def test_mxfp4_is_quantised_as_the_gguf_package_does(exponent, seed):
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((4, 96)) * 2.0 ** (exponent + rng.integers(-3, 4, (4, 1)))).astype("f4")
    expected = quants.quantize(values, gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(quantize(fp32(values), "mxfp4").codes, expected)


def test_mxfp4_exponents_are_exact_powers():
    exponents = np.arange(256, dtype=np.uint8)
    expected = np.ldexp(1.0, exponents.astype(np.int64) - 128)
    assert np.array_equal(half_powers(exponents).astype(np.float64), expected)


def test_mxfp4_from_the_layout_of_hugging_face():
    """Against the definition: neighbours share a byte, a value is e2m1 times 2^(exponent - 127)."""
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, (7, 3, 16), np.uint8)
    scales = rng.integers(100, 140, (7, 3), np.uint8)
    got = dequantize(from_blocks_and_scales(blocks, scales))
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values += [-value for value in values]
    for row in range(7):
        for i in range(96):
            byte = int(blocks[row, i // 32, i % 32 // 2])
            code = byte >> 4 if i % 2 else byte & 15
            assert got[row, i] == values[code] * 2.0 ** (int(scales[row, i // 32]) - 127)
    for bad_blocks, bad_scales in ((blocks[:, :, :8], scales), (blocks, scales[:, :2]), (blocks.astype("i1"), scales)):
        with pytest.raises(LowBitFormatError):
            from_blocks_and_scales(bad_blocks, bad_scales)
