"""Weights into tiles and back: every bit of every format, whatever the shape.

The way back asks where each word lies, one by one; the way there moves four and more at a time.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.formats import FLOATS, FORMATS
from ipex_lookahead.formats.base import PackedWeight
from tests.gates import cases

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines.native.linear import LinearPool


def weight(name: str, shape: tuple[int, int], group: int, seed: int) -> PackedWeight:
    """Random bits; of a block format random codes and steps, and zeros where no input reaches."""
    rng = np.random.default_rng(seed)
    if name in FLOATS:
        stream = FORMATS[name].streams[0]
        return PackedWeight(
            name, shape, rng.integers(0, 256, (*shape, stream.itemsize), np.uint8).view(stream.dtype)[..., 0]
        )
    made = FORMATS[name].random(shape, group, rng)
    for array in (made.scales, made.minimums):
        if array is not None:
            array[...] = rng.integers(0, 1 << 16, array.shape, np.uint16)
    return made


@pytest.mark.parametrize(
    ("name", "group"), [(name, group) for name, one in FORMATS.items() for group in one.group_sizes]
)
@settings(deadline=None, max_examples=cases(10, 25))
@given(
    n_out=st.integers(1, 50), n_in=st.integers(1, 600), threads=st.sampled_from([1, 2, 3]), seed=st.integers(0, 1 << 16)
)
def test_what_is_packed_comes_back(name: str, group: int, n_out: int, n_in: int, threads: int, seed: int) -> None:
    given = weight(name, (n_out, n_in), group, seed)
    found = LinearPool(threads).layer(given).weight()
    assert (found.format, found.shape, found.group_size) == (given.format, given.shape, given.group_size)
    for (stream, expected), (_, got) in zip(given.arrays(), found.arrays(), strict=True):
        assert got.tobytes() == expected.tobytes(), stream
