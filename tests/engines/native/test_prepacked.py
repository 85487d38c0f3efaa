"""Tiles for kernels elsewhere: the way there and back loses no bit, and they are what the core itself reads."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from dataclasses import replace

from ipex_lookahead.engines.native.linear import prepacked, unpacked
from ipex_lookahead.errors import InputError
from tests.engines.native.test_kernels import SHAPES, WITH_GROUPS, make_weight


@pytest.mark.parametrize(("name", "group"), WITH_GROUPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.rotating(45)
def test_there_and_back(name: str, group: int, shape: tuple[int, int]) -> None:
    weight = make_weight(name, *shape, group=group, seed=1)
    tiles = prepacked(weight, threads=2)
    assert [None if t is None else t.tobytes() for t in prepacked(weight, threads=1)] == [
        None if t is None else t.tobytes() for t in tiles
    ]
    again = unpacked(name, shape, weight.group_size, tiles, threads=2)
    assert (again.format, again.shape, again.group_size) == (weight.format, weight.shape, weight.group_size)
    assert [(n, a.tobytes()) for n, a in again.arrays()] == [(n, a.tobytes()) for n, a in weight.arrays()]


def test_a_tile_is_16_outputs_by_32_inputs() -> None:
    """Bytes, the plainest codes: a word of four of one output's inputs, then the next output's."""
    weight = make_weight("sym_int8", 32, 64)
    codes, scales, minimums, steps = prepacked(weight)
    plain = weight.codes.view(np.uint8).reshape(32, 64) ^ 0x80  # signed in a file, from 0 in a tile
    for tile in range(2):
        for block in range(2):
            own = plain[16 * tile : 16 * tile + 16, 32 * block : 32 * block + 32]
            expected = own.reshape(16, 8, 4).transpose(1, 0, 2)
            at = 512 * (2 * tile + block)
            assert codes[at : at + 512].tobytes() == expected.tobytes()
    assert weight.scales is not None
    assert scales is not None
    assert scales.reshape(2, 2, 16).tobytes() == weight.scales.reshape(2, 16, 2).transpose(0, 2, 1).tobytes()
    assert minimums is None
    assert steps is None


def test_streams_of_another_shape_are_refused() -> None:
    weight = make_weight("sym_int4", 16, 64)
    with pytest.raises(InputError, match="not a sym_int4 weight"):
        prepacked(replace(weight, codes=weight.codes[:, :-1]))
