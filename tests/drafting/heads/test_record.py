"""What is counted of a head's drafts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.drafting.heads.record import PARTS, Record

TOKENS = st.lists(st.integers(0, 2), max_size=6)


def test_a_chain_is_counted_up_to_its_first_wrong_token() -> None:
    record = Record()
    record.observe([5, 6, 7, 8], [0.9, 0.8, 0.7, 0.6], [5, 6, 1, 8])
    assert (record.right, record.tested) == ([1, 1, 0], [1, 1, 1])
    record.observe([5, 6], [0.9, 0.8], [5])
    assert (record.right, record.tested) == ([2, 1, 0], [2, 1, 1])
    assert record.tests == 2


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=40))
def test_counts_and_chances_are_possible_whatever_is_drafted(chains: list[tuple[list[int], list[int]]]) -> None:
    record, right, tested = Record(), [0] * 6, [0] * 6
    for drafted, true in chains:
        record.observe(drafted, [0.5] * len(drafted), true)
        for depth, (mine, theirs) in enumerate(zip(drafted, true, strict=False)):
            tested[depth] += 1
            right[depth] += mine == theirs
            if mine != theirs:
                break
    seen = len(record.tested)
    assert (record.right, record.tested) == (right[:seen], tested[:seen])
    assert not any(tested[seen:])
    assert all(0.0 < record.chance(depth) < 1.0 for depth in range(9))
    assert all(0.0 < rate < 1.0 for rate in record.rates)
    assert record.proven == 1 + ([*right, 0].index(0))


def test_a_probability_is_calibrated_in_its_part_alone() -> None:
    record = Record()
    for _ in range(200):
        record.observe([1, 1], [0.99, 0.3], [1, 2])
    assert record.rate(1.0) > 0.95
    assert record.rate(0.3) < 0.05
    untouched = [rate for part, rate in enumerate(record.rates) if part not in (2, PARTS - 1)]
    assert untouched == [(part + 0.5) / PARTS for part in range(PARTS) if part not in (2, PARTS - 1)]


def test_a_depth_that_failed_once_is_tried_again() -> None:
    """Else one bad chain would end all of that length: a depth that is not drafted is not tested."""
    record = Record()
    record.observe([1, 1], [0.9, 0.9], [1, 2])
    assert record.chance(1) < 0.55
    for _ in range(200):
        record.observe([1], [0.9], [1])
    assert record.chance(1) == pytest.approx(Record().chance(1), abs=0.02)


def test_no_draft_is_no_test() -> None:
    """A head that is left alone is not tried again because time goes by."""
    record = Record()
    for _ in range(60):
        record.observe([1], [0.9], [2])
    low = record.chance(0)
    for _ in range(100):
        record.observe([], [], [1, 2])
        record.observe([1], [0.9], [])
    assert record.chance(0) == low < 0.15
    assert record.tests == 60


def test_it_goes_on_from_what_was_kept() -> None:
    record = Record([(900, 1000), (3, 10)])
    assert record.chance(0) == pytest.approx(0.9)
    assert record.chance(1) == pytest.approx(0.3)
    assert record.chance(2) == Record().chance(0)
    assert (record.proven, record.tests) == (3, 1000)
    record.observe([1], [0.5], [1])
    assert (record.right, record.tested) == ([901, 3], [1001, 10])
