"""Detection of repetition at the end of an answer."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ipex_lookahead.runtime.repetition import TAIL, ends_in_loop, loops, repeats, stop_at_loops

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


def test_a_loop_is_stricter_than_a_repetition() -> None:
    part = list(range(40))
    assert repeats([*part, *range(100, 200), *range(100, 200)])
    assert not loops([*range(500), *range(500)])
    assert loops([*range(300), *part * 5])
    assert not loops([*range(300), *part * 4])
    assert loops([7] * 192)
    assert not loops([7] * 191)


def test_a_sequence_ends_where_its_answer_loops():
    """A repetition in the prompt does not count."""
    ids = np.array([7] * 200 + VARIED[:64] + [7] * 256, np.int64)
    stop = stop_at_loops(200)
    assert [end - 200 for end in range(201, len(ids) + 1) if stop(ids[:end])] == [256, 320]
    assert [end for end in range(1, 257) if ends_in_loop([7] * end)] == [192, 256]
