"""The compiled search against the numpy definition: every bit, for any shape, float kind, group, lanes and threads."""

from __future__ import annotations

import importlib
import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats import FLOATS, FORMATS, PackedWeight, quantize, search
from ipex_lookahead.formats.float_base import narrow

try:
    native = importlib.import_module("ipex_lookahead._native")
except ImportError as error:
    pytest.skip(f"the compiled core cannot be imported: {error}", allow_module_level=True)

SEARCHED = tuple(name for name in FORMATS if name not in (*FLOATS, "mxfp4"))
LANES = [lanes for lanes in (4, 8, 16) if lanes <= native.most_search_lanes()]


def with_lanes(lanes: int | None, *arguments: Any) -> PackedWeight:
    """``quantize`` by the core with so many lanes, or by the definition."""
    core = None if lanes is None else SimpleNamespace(search=lambda *given: native.search(*given, lanes=lanes))
    with patch.object(search, "native_core", lambda: core):
        return quantize(*arguments)


@st.composite
def weights(draw: st.DrawFn) -> PackedWeight:
    """Float matrices of all kinds: ordinary, tiny, huge, wide in range, with ties and zeros, and random bits."""
    shape = (draw(st.integers(1, 9)), draw(st.sampled_from([1, 5, 31, 32, 33, 63, 64, 65, 100, 172, 256, 352])))
    kind = draw(st.sampled_from(["fp32", "fp16", "bf16"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = 10.0 ** draw(st.integers(-9, 4))
    values = {
        "normal": lambda: rng.standard_normal(shape) * spread,
        "wide": lambda: rng.standard_normal(shape) * 10.0 ** rng.uniform(-9, 4, shape),
        "ties": lambda: rng.integers(-9, 10, shape) * 2.0 ** int(rng.integers(-26, 4)),
        "zeros": lambda: np.where(rng.random(shape) < 0.5, 0.0, -0.0),
        "alike": lambda: np.repeat(rng.standard_normal((shape[0], 1)), shape[1], axis=1) * spread,
        "bits": lambda: rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32),
    }[draw(st.sampled_from(["normal", "wide", "ties", "zeros", "alike", "bits"]))]()
    with np.errstate(all="ignore"):
        return PackedWeight(kind, shape, narrow(values.astype(np.float32), kind))


@settings(max_examples=250, deadline=None)
@given(
    weight=weights(),
    name=st.sampled_from(SEARCHED),
    group_size=st.sampled_from([32, 64]),
    threads=st.sampled_from([1, 2, 3]),
    important=st.sampled_from(["alike", "some", "one"]),
)
def test_native_equals_numpy_bit_for_bit(weight, name, group_size, threads, important):
    n_in = weight.shape[1]
    importance = {
        "alike": None,
        "some": np.random.default_rng(n_in).random(n_in, np.float32) ** 8,
        "one": np.eye(1, n_in, n_in // 2, dtype=np.float32)[0] * 1e30,
    }[important]
    arguments = (weight, name, group_size, threads, importance)
    try:
        expected = with_lanes(None, *arguments)
    except LowBitFormatError as error:
        for lanes in LANES:
            with pytest.raises(LowBitFormatError, match=re.escape(str(error))):
                with_lanes(lanes, *arguments)
        return
    for lanes in LANES:
        got = with_lanes(lanes, *arguments)
        for (stream, array), (_, wanted) in zip(got.arrays(), expected.arrays(), strict=True):
            assert array.dtype == wanted.dtype
            assert np.array_equal(array, wanted), (stream, lanes)


def test_the_package_uses_the_compiled_core():
    weight = PackedWeight("fp32", (3, 40), np.arange(120, dtype=np.float32).reshape(3, 40)[:, ::-1])  # not contiguous
    calls = []
    spy = SimpleNamespace(search=lambda *given: calls.append(len(given)) or native.search(*given))
    with patch.object(search, "native_core", lambda: spy):
        packed = quantize(weight, "sym_int4", 32, threads=8)
    assert calls
    expected = with_lanes(None, weight, "sym_int4", 32)
    assert np.array_equal(packed.codes, expected.codes)
    assert np.array_equal(packed.scales, expected.scales)


def test_threads_below_one_are_refused():
    with pytest.raises(LowBitFormatError, match="threads is 0"):
        quantize(PackedWeight("fp32", (1, 1), np.ones((1, 1), np.float32)), "sym_int4", threads=0)


GOOD = {
    "values": np.ones((4, 64), np.float32), "importance": np.ones((2, 64), np.float32), "size": 16,
    "numbers": np.array([-8, 7], np.float32), "whole": True, "tries": np.array([-8], np.float32),
    "step_limit": -32, "minimum": False, "lanes": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"size": 0}, "parts"),
        ({"size": 128}, "parts"),
        ({"size": 24}, "parts"),
        ({"size": 2}, "parts"),
        ({"importance": np.ones((3, 64), np.float32)}, "importance"),
        ({"importance": np.ones((2, 32), np.float32)}, "importance"),
        ({"importance": np.ones((0, 64), np.float32)}, "importance"),
        ({"numbers": np.ones(0, np.float32)}, "numbers"),
        ({"numbers": np.ones(257, np.float32)}, "numbers"),
        ({"step_limit": 0}, "steps"),
        ({"step_limit": 1}, "steps"),
        ({"step_limit": -129}, "steps"),
        ({"minimum": True}, "steps"),
        ({"minimum": True, "step_limit": 63}, "begin with 0"),
        ({"lanes": 5}, "lanes"),
        ({"lanes": 32}, "lanes"),
        ({"lanes": -1}, "lanes"),
    ],
)
def test_the_core_refuses_what_is_no_search(change, what):
    native.search(**GOOD)
    with pytest.raises(ValueError, match=what):
        native.search(**{**GOOD, **change})
