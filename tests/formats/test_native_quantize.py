"""The compiled search against the numpy definition: every bit, for any shape, float kind, group, lanes and threads."""

from __future__ import annotations

import importlib
import os
import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats import FLOATS, FORMATS, PackedWeight, get_format, groups, quantize
from ipex_lookahead.formats.float_base import narrow
from tests.gates import cases

try:
    native = importlib.import_module("ipex_lookahead._native")
except ImportError as error:
    pytest.skip(f"the compiled core cannot be imported: {error}", allow_module_level=True)

SEARCHED = tuple(name for name in FORMATS if name not in FLOATS)
LANES = [lanes for lanes in (4, 8, 16) if lanes <= native.most_search_lanes()]


def with_lanes(lanes: int | None, *arguments: Any) -> PackedWeight:
    """``quantize`` by the core with so many lanes, or by the definition."""
    core = None if lanes is None else SimpleNamespace(quantize=lambda *given: native.quantize(*given[:-1], lanes))
    with patch.object(groups, "native_core", lambda: core):
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


@pytest.mark.rotating(1)
@settings(max_examples=cases(60, 250), deadline=None)
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
    spy = SimpleNamespace(quantize=lambda *given: calls.append(len(given)) or native.quantize(*given))
    with patch.object(groups, "native_core", lambda: spy):
        packed = quantize(weight, "sym_int4", 32, threads=8)
    assert calls
    expected = with_lanes(None, weight, "sym_int4", 32)
    assert np.array_equal(packed.codes, expected.codes)
    assert np.array_equal(packed.scales, expected.scales)


def test_threads_below_one_are_refused():
    with pytest.raises(LowBitFormatError, match="threads is 0"):
        quantize(PackedWeight("fp32", (1, 1), np.ones((1, 1), np.float32)), "sym_int4", threads=0)


def given(**change: Any) -> tuple[Any, ...]:
    """The core's arguments for a matrix of two rows of 320 in q3_k, or with another of them."""
    arguments = {
        "format": "q3_k", "values": np.ones((2, 320), np.float32), "kind": "fp32",
        "importance": np.ones(512, np.float32), "searched": "scale", "size": 16,
        "numbers": np.array([-4, 3], np.float32), "whole": True, "tries": np.array([-4], np.float32),
        "step_limit": -32, "code_of": np.arange(256, dtype=np.uint8), "largest": 1e10,
        "codes": np.zeros((2, 220), np.uint8), "scales": None, "minimums": None, "threads": 1, "lanes": 4,
    }  # fmt: skip
    return tuple({**arguments, **change}.values())


GROUPS = {
    "format": "sym_int4", "importance": np.ones(320, np.float32), "size": 32, "step_limit": 0,
    "codes": np.zeros((2, 160), np.uint8), "scales": np.zeros((2, 10), np.uint16),
}  # fmt: skip


def test_what_is_no_quantisation_is_changed_in_one_place_below():
    assert native.quantize(*given()) == -1
    assert native.quantize(*given(**GROUPS)) == -1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"format": "q9_k"}, "no kernel"),
        ({"format": "fp16"}, "no scales"),
        ({"kind": "fp64"}, "kind"),
        ({"kind": "bf16"}, "2 bytes"),
        ({"values": np.ones((2, 0), np.float32)}, "from 1 to"),
        ({"searched": "luck"}, "searched"),
        ({"size": 0}, "parts"),
        ({"size": 128}, "steps|store"),
        ({"size": 24}, "parts"),
        ({"size": 2}, "parts"),
        ({"size": 32}, "cannot store"),
        ({"searched": "float_scale"}, "steps"),
        ({"importance": np.ones(511, np.float32)}, "importance"),
        ({"numbers": np.ones(0, np.float32)}, "numbers"),
        ({"numbers": np.ones(257, np.float32)}, "numbers"),
        ({"code_of": np.zeros(16, np.uint8)}, "numbers"),
        ({"step_limit": 0}, "steps"),
        ({"step_limit": 1}, "steps"),
        ({"step_limit": -129}, "steps"),
        ({"searched": "minimum", "step_limit": 15}, "from 0"),
        ({"searched": "minimum", "step_limit": 15, "numbers": np.array([0, 7], np.float32)}, "cannot store"),
        ({"lanes": 5}, "lanes"),
        ({"lanes": 32}, "lanes"),
        ({"lanes": -1}, "lanes"),
        ({"threads": 0}, "threads"),
        ({"codes": np.zeros((2, 219), np.uint8)}, "shapes"),
        ({"codes": np.zeros((1, 220), np.uint8)}, "shapes"),
        ({"scales": np.zeros((2, 10), np.uint16)}, "shapes"),
        ({**GROUPS, "scales": None}, "shapes"),
        ({**GROUPS, "scales": np.zeros((2, 9), np.uint16)}, "shapes"),
        ({**GROUPS, "minimums": np.zeros((2, 10), np.uint16)}, "shapes"),
        ({**GROUPS, "size": 48, "importance": np.ones(336, np.float32)}, "power of two"),
        ({**GROUPS, "size": 16}, "power of two"),
        ({**GROUPS, "searched": "zero"}, "from 0"),
        ({**GROUPS, "format": "zero_int4", "minimums": np.zeros((2, 10), np.uint16)}, "cannot store"),
        (
            {**GROUPS, "format": "zero_int4", "searched": "zero", "numbers": np.array([0, 15], np.float32),
             "tries": np.ones(0, np.float32)},
            "at least one try",
        ),
    ],
)  # fmt: skip
def test_the_core_refuses_what_is_no_quantisation(change, what):
    with pytest.raises(ValueError, match=what):
        native.quantize(*given(**change))


@pytest.mark.parametrize("name", SEARCHED)
@pytest.mark.rotating(7)
def test_of_several_rows_that_cannot_be_quantised_the_first_is_named(name):
    values = np.ones((600, 70), np.float32)
    values[500:, 3] = np.nan
    values[300, 69] = np.inf
    values[301, 5] = 1e30 if name != "mxfp4" else np.nan
    for core in (None, native):
        with patch.object(groups, "native_core", lambda core=core: core):
            with pytest.raises(LowBitFormatError, match=r"row 300, column 69 is inf"):
                quantize(PackedWeight("fp32", values.shape, values), name, 32, threads=3)
            if name != "mxfp4":
                with pytest.raises(LowBitFormatError, match=r"row 1, group 0: the scale would be too large"):
                    quantize(PackedWeight("fp32", (299, 70), np.where(np.isfinite(values), values, 0)[300:599]), name)


@pytest.mark.parametrize("name", ["zero_int4", "zero_int8"])
@pytest.mark.parametrize("group_size", get_format("zero_int4").group_sizes)
def test_groups_as_long_as_files_have_them(name, group_size):
    rng = np.random.default_rng(group_size)
    weight = PackedWeight("fp32", (5, 1100), rng.standard_normal((5, 1100), np.float32))
    expected = with_lanes(None, weight, name, group_size)
    for lanes in LANES:
        for (_, array), (_, wanted) in zip(
            with_lanes(lanes, weight, name, group_size).arrays(), expected.arrays(), strict=True
        ):
            assert np.array_equal(array, wanted)


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (2.7, 2), (0.3, 1), (64.0, 4)])
def test_no_more_threads_quantise_than_the_quota_pays_for(quota, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(groups, "cpu_quota", lambda: quota)
    assert groups._usable_cpus() == expected
