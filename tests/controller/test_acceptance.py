"""What is learned of how often draft tokens are right."""

from __future__ import annotations

import pytest

from ipex_lookahead.controller.acceptance import (
    ALLOWED_LOSS,
    FADE,
    FIRST_SHARE,
    MAX_CHANCE,
    MIN_SURVIVAL,
    PRIOR_COUNT,
    PRIOR_RATE,
    Acceptance,
    Backoff,
    SourceRates,
)
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
    assert acceptance.expect(draft).survival[0] <= MAX_CHANCE


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
    assert seen.right == 1
    seen.walk([4])
    assert seen.right == 2
    seen.walk([8])
    assert not seen.open
    assert seen.right == 0


def test_the_end_of_a_draft_is_no_miss() -> None:
    seen = Acceptance().expect(Draft.chain([3, 4]))
    seen.walk([3, 4, 9])
    assert not seen.open
    assert seen.right == 2
    leaf = Acceptance().expect(Draft([3, 7], [-1, -1]))
    leaf.walk([3, 5])
    assert leaf.right == 1


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
    assert min(survival) >= MIN_SURVIVAL


def test_old_counts_fade() -> None:
    acceptance = Acceptance()
    draft = Draft.chain([3])
    learn(acceptance, draft, [9], 500)
    learn(acceptance, draft, [3], 100)
    assert acceptance.expect(draft).survival[0] > 0.6


def test_before_a_draft_is_there_its_depths_say_what_to_expect() -> None:
    acceptance = Acceptance("x")
    rates = acceptance.rates("x")
    assert [rates.chance(depth) for depth in (0, 5)] == [PRIOR_RATE] * 2
    learn(acceptance, Draft([3, 4, 5], [-1, 0, 1], probs=[0.8] * 3), [3, 9])
    assert rates.chance(0) > 0.9
    assert rates.chance(1) < 0.1
    assert rates.chance(2) == pytest.approx(PRIOR_RATE), "it was never tested"


def test_a_depth_that_failed_once_is_tried_again() -> None:
    """A depth that is not drafted is not tested: counts fade with every draft of the source."""
    acceptance = Acceptance("x")
    rates = acceptance.rates("x")
    learn(acceptance, Draft([1, 1], [-1, 0], probs=[0.9] * 2), [1, 2], times=1)
    assert rates.chance(1) < 0.5
    learn(acceptance, Draft([1], [-1], probs=[0.9]), [1], times=200)
    assert rates.chance(1) == pytest.approx(PRIOR_RATE, abs=0.01)


def test_no_draft_is_no_test() -> None:
    """A source that pauses does not become good because time goes by."""
    acceptance = Acceptance("x")
    learn(acceptance, Draft([1], [-1], probs=[0.9]), [2])
    low = acceptance.rates("x").chance(0)
    learn(acceptance, Draft(), [1, 2])
    assert acceptance.rates("x").chance(0) == low < 0.15


def test_rates_are_fading_counts_on_a_prior() -> None:
    acceptance = Acceptance("x")
    learn(acceptance, Draft([1], [-1], probs=[0.5]), [1], times=2)
    tested = 1 + FADE
    assert acceptance.rates("x").cells[0] == pytest.approx([tested, 0.5 * tested, tested])
    expected = 0.5 * (tested + PRIOR_COUNT) / (0.5 * tested + PRIOR_COUNT)
    assert acceptance.expect(Draft([7], [-1], probs=[0.5])).survival == pytest.approx([expected])


def test_a_price_follows_what_is_timed_and_one_hiccup_changes_little() -> None:
    rates = SourceRates()
    for seconds in (5.0, 0.2):
        rates.follow_price(seconds, 0.1)
    assert rates.seconds == 0.2, "the first draft touched memory for the first time"
    rates.follow_price(100.0, 0.1)
    assert rates.seconds == pytest.approx(0.22)


def test_the_most_likely_path_ends_where_it_is_likelier_wrong() -> None:
    tree = Draft([3, 4, 5, 6, 7], [-1, -1, 1, 1, 3], probs=[0.3, 0.9, 0.2, 0.8, 0.6])
    assert Acceptance().expect(tree).most_likely_path() == [1, 3]
    assert Acceptance().expect(Draft([3], [-1], probs=[0.4])).most_likely_path() == []


# ---- pauses ----------------------------------------------------------------------------------------------------------


def pauses(cost: float, steps: int) -> list[int]:
    """The pauses of a source that brings nothing, after each step in which it drafts."""
    backoff, found = Backoff(), []
    for _ in range(steps):
        backoff.judge(pays=False, cost=cost)
        found.append(backoff.pause)
    return found


@pytest.mark.parametrize("cost", [0.01, 0.03, 0.1, 1.0])
def test_pauses_grow_until_drafting_in_vain_costs_what_it_may(cost: float) -> None:
    found = pauses(cost, 60)
    assert found == sorted(found)
    assert found[0] == round(cost / FIRST_SHARE)
    assert found[-1] == round(cost / ALLOWED_LOSS)


def test_what_costs_nothing_never_pauses_and_what_pays_begins_again_with_short_pauses() -> None:
    assert pauses(0.0, 60) == [0] * 60
    for end in (lambda backoff: backoff.judge(pays=True, cost=0.1), Backoff.resume):
        backoff = Backoff()
        for _ in range(40):
            backoff.judge(pays=False, cost=0.1)
        assert backoff.pause > 10
        end(backoff)
        backoff.judge(pays=False, cost=0.1)
        assert backoff.pause == 1
