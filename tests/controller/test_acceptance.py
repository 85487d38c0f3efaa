"""What is learned of how often draft tokens are right."""

from __future__ import annotations

import pytest

from ipex_lookahead.controller.acceptance import LEAST, MOST, Acceptance
from ipex_lookahead.drafting.draft import Draft


def learn(acceptance: Acceptance, draft: Draft, emitted: list[int], times: int = 60) -> None:
    for _ in range(times):
        acceptance.expect(draft).walk(emitted)


def test_estimates_are_believed_until_something_is_known() -> None:
    tree = Draft([3, 4, 9], [-1, 0, -1], probs=[0.5, 0.8, 0.25])
    assert Acceptance().expect(tree).survival == pytest.approx([0.5, 0.4, 0.25])


def test_what_is_half_as_often_right_as_it_says_counts_half() -> None:
    acceptance = Acceptance("x")
    draft = Draft([3], [-1], probs=[0.8])
    for turn in range(400):
        acceptance.expect(draft).walk([3] if turn % 5 < 2 else [4])
    assert acceptance.expect(draft).survival[0] == pytest.approx(0.4, abs=0.12)


def test_nothing_is_certain() -> None:
    acceptance = Acceptance()
    draft = Draft.chain([3, 4])
    learn(acceptance, draft, [3, 4], 500)
    assert acceptance.expect(draft).survival[0] <= MOST


def test_after_the_first_miss_nothing_is_known() -> None:
    acceptance = Acceptance()
    draft = Draft([3, 4], [-1, 0], probs=[0.5, 0.5])
    learn(acceptance, draft, [7, 4])
    (first, *_) = acceptance.expect(draft).survival
    assert first < 0.1
    learn(acceptance, draft, [3, 4], 20)
    first, second = acceptance.expect(draft).survival
    assert second > 0.5 * first, "the second token was never seen to be wrong"


def test_sources_depths_and_matches_are_told_apart() -> None:
    acceptance = Acceptance()
    draft = Draft([3, 4], [-1, -1], probs=[0.4, 0.4], sources=["good", "bad"])
    learn(acceptance, draft, [3])
    good, bad = acceptance.expect(draft).survival
    assert good > 0.8
    assert bad < 0.1
    short, long = Draft.chain([3, 4], match=1), Draft.chain([3, 4], match=5)
    learn(acceptance, short, [9])
    assert acceptance.expect(short).survival[0] < 0.1
    assert acceptance.expect(long).survival[0] > 0.5
    learn(acceptance, long, [3, 9])
    first, second = acceptance.expect(long).survival
    assert first > 0.8
    assert second < 0.1


def test_a_walk_goes_on_over_several_steps() -> None:
    seen = Acceptance().expect(Draft([3, 4, 5, 6], [-1, 0, 1, -1]))
    seen.walk([3])
    assert seen.open
    assert seen.tried == [True]
    seen.walk([4, 8])
    assert not seen.open
    assert seen.tried == [True, True, False]


def test_the_end_of_a_draft_is_no_miss() -> None:
    seen = Acceptance().expect(Draft.chain([3, 4]))
    seen.walk([3, 4, 9])
    assert not seen.open
    assert seen.tried == [True, True]
    leaf = Acceptance().expect(Draft([3, 7], [-1, -1]))
    leaf.walk([3, 5])
    assert leaf.tried == [True]


def test_of_equal_siblings_the_first_is_right() -> None:
    acceptance = Acceptance()
    draft = Draft([3, 3], [-1, -1], probs=[0.4, 0.4], sources=["a", "b"])
    learn(acceptance, draft, [3])
    first, second = acceptance.expect(draft).survival
    assert first > 0.8
    assert second < 0.1


def test_scratch_rows_are_not_expected() -> None:
    assert len(Acceptance().expect(Draft([3, 4, 5], [-1, 0, -1], scratch=2)).survival) == 1
    empty = Acceptance().expect(Draft())
    empty.walk([1])
    assert not empty.open


def test_what_is_too_unlikely_is_left_out_of_account() -> None:
    draft = Draft.chain(range(64), match=1)
    survival = Acceptance().expect(draft).survival
    assert 5 < len(survival) < 20
    assert min(survival) >= LEAST


def test_old_counts_fade() -> None:
    acceptance = Acceptance()
    draft = Draft.chain([3])
    learn(acceptance, draft, [9], 500)
    learn(acceptance, draft, [3], 100)
    assert acceptance.expect(draft).survival[0] > 0.6


def test_before_a_draft_is_there_its_depths_say_what_to_expect() -> None:
    acceptance = Acceptance()
    assert acceptance.chances(3) == pytest.approx([0.7, 0.7**2, 0.7**3])
    learn(acceptance, Draft.chain([3, 4, 5]), [3, 9])
    first, second, third = acceptance.chances(3)
    assert first > 0.9
    assert second < 0.1
    assert third == pytest.approx(0.7 * second), "it was never tested"
