"""The compiled quantisers against the numpy definition: every bit, for any shape, float kind, group and threads."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats import FORMATS, PackedWeight, quantize
from ipex_lookahead.formats.float_base import narrow
from ipex_lookahead.formats.groups import numpy_quantize

try:
    native = importlib.import_module("ipex_lookahead._native")
except ImportError as error:
    pytest.skip(f"the compiled core cannot be imported: {error}", allow_module_level=True)

INTEGER = ("sym_int4", "asym_int4", "sym_int8")


def defined(weight: PackedWeight, name: str, group_size: int) -> PackedWeight:
    return numpy_quantize(weight, FORMATS[name], group_size)


@st.composite
def weights(draw: st.DrawFn) -> PackedWeight:
    """Float matrices of all kinds: ordinary, tiny, huge, wide in range, with ties and zeros, and random bits."""
    shape = (draw(st.integers(1, 9)), draw(st.sampled_from([1, 5, 31, 32, 33, 63, 64, 65, 100, 172, 352])))
    kind = draw(st.sampled_from(["fp32", "fp16", "bf16"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = 10.0 ** draw(st.integers(-9, 4))
    values = {
        "normal": lambda: rng.standard_normal(shape) * spread,
        "wide": lambda: rng.standard_normal(shape) * 10.0 ** rng.uniform(-9, 4, shape),
        "ties": lambda: rng.integers(-9, 10, shape) * 2.0 ** int(rng.integers(-26, 4)),
        "zeros": lambda: np.where(rng.random(shape) < 0.5, 0.0, -0.0),
        "bits": lambda: rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32),
    }[draw(st.sampled_from(["normal", "wide", "ties", "zeros", "bits"]))]()
    with np.errstate(all="ignore"):
        return PackedWeight(kind, shape, narrow(values.astype(np.float32), kind))


@settings(max_examples=250, deadline=None)
@given(
    weight=weights(),
    name=st.sampled_from(INTEGER),
    group_size=st.sampled_from([32, 64]),
    threads=st.sampled_from([1, 2, 3]),
)
def test_native_equals_numpy_bit_for_bit(weight, name, group_size, threads):
    try:
        expected = defined(weight, name, group_size)
    except LowBitFormatError as error:
        refusal = str(error)
        with pytest.raises(ValueError, match="row"):
            native.quantize(name, weight.format, weight.codes, group_size, threads)
        with pytest.raises(LowBitFormatError, match=re.escape(refusal)):
            quantize(weight, name, group_size, threads)
        return
    codes, scales, minimums = native.quantize(name, weight.format, weight.codes, group_size, threads)
    assert np.array_equal(codes.view(expected.codes.dtype), expected.codes)
    assert scales.dtype == np.uint16
    assert np.array_equal(scales, expected.scales)
    assert (minimums is None) == (expected.minimums is None)
    assert minimums is None or np.array_equal(minimums, expected.minimums)


def test_the_package_uses_the_compiled_core():
    weight = PackedWeight("fp32", (3, 40), np.arange(120, dtype=np.float32).reshape(3, 40)[:, ::-1])  # not contiguous
    packed = quantize(weight, "sym_int4", 32, threads=8)
    expected = defined(weight, "sym_int4", 32)
    assert np.array_equal(packed.codes, expected.codes)
    assert np.array_equal(packed.scales, expected.scales)


def test_threads_below_one_are_refused():
    with pytest.raises(LowBitFormatError, match="threads is 0"):
        quantize(PackedWeight("fp32", (1, 1), np.ones((1, 1), np.float32)), "sym_int4", threads=0)


def test_a_disagreement_with_the_definition_is_not_hidden(monkeypatch):
    """If the core refuses what numpy takes, the core's error comes out; nothing falls back in silence."""
    from ipex_lookahead.formats import groups

    class Broken:
        @staticmethod
        def quantize(*arguments):
            raise ValueError("row 0 is not to my taste")

    monkeypatch.setattr(groups, "_native_core", lambda: Broken)
    with pytest.raises(ValueError, match="not to my taste"):
        quantize(PackedWeight("fp32", (1, 1), np.ones((1, 1), np.float32)), "sym_int4")


@pytest.mark.parametrize("name", INTEGER)
def test_numpy_serves_where_no_core_was_built(monkeypatch, name):
    from ipex_lookahead.formats import groups

    weight = PackedWeight("fp32", (5, 70), np.random.default_rng(0).standard_normal((5, 70)).astype(np.float32))
    expected = quantize(weight, name)
    monkeypatch.setattr(groups, "_native_core", lambda: None)
    packed = quantize(weight, name)
    assert np.array_equal(packed.codes, expected.codes)
    assert np.array_equal(packed.scales, expected.scales)
