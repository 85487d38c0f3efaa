"""Detection of repetition at the end of an answer."""

from __future__ import annotations

import random

import pytest

from ipex_lookahead.runtime.repetition import TAIL, repeats

VARIED = random.Random(3).choices(range(1000), k=300)


@pytest.mark.parametrize("period", [1, 2, 3, 17, 32])
def test_one_thing_again_and_again(period):
    said = VARIED[:period] * (TAIL // period + 1)
    assert repeats(VARIED + said[-TAIL:])
    assert repeats(said[-TAIL:]), "also where nothing stands before"


@pytest.mark.parametrize("apart", [64, 100, 200])
def test_a_long_part_once_more(apart):
    assert repeats(VARIED[:apart] + VARIED[:TAIL])
    assert not repeats(VARIED[:apart] + VARIED[: TAIL - 1])


def test_what_does_not_repeat():
    assert not repeats([])
    assert not repeats([5] * (TAIL - 1)), "too short to tell"
    assert not repeats(VARIED)
    assert not repeats([5] * TAIL + VARIED[:40]), "it found its way out"
    assert not repeats(list(range(40)) + list(range(24))), "a word said again is no loop"


def test_a_match_across_token_boundaries_is_no_repetition():
    shifted = [1 << 32] * (TAIL + 1)  # the bytes of 1, four bytes later
    assert not repeats([*shifted, *range(200, 200 + TAIL // 2), *VARIED[: TAIL // 2]])
