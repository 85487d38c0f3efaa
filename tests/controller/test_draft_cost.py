"""What drafting costs, and how long a proposer is left alone that brings less."""

from __future__ import annotations

import pytest

from ipex_lookahead.controller.draft_cost import (
    EXPENSIVE,
    LEAST_SHARE,
    LEAST_TOKENS,
    LONGEST_PAUSE,
    OVERHEAD,
    DraftCost,
)


def pauses(cost: float, steps: int) -> list[int]:
    """The pauses of a proposer that brings nothing, after each step in which it drafts."""
    drafting, found = DraftCost(8), []
    for _ in range(steps):
        drafting.weigh(0.0, cost)
        found.append(drafting.pause)
        drafting.pause = 0
    return found


@pytest.mark.parametrize("cost", [0.01, 0.03, 0.1])
def test_pauses_grow_until_drafting_in_vain_costs_next_to_nothing(cost: float) -> None:
    found = pauses(cost, 60)
    assert found == sorted(found)
    assert found[0] == 0
    assert cost / (1 + found[-1]) <= LEAST_SHARE
    assert found[-1] <= LONGEST_PAUSE


def test_what_costs_a_whole_forward_is_tried_again_at_last() -> None:
    assert pauses(1.0, 60)[-1] == LONGEST_PAUSE


def test_what_costs_nothing_never_pauses() -> None:
    assert pauses(0.0, 60) == [0] * 60


def test_what_brings_more_than_it_costs_never_pauses() -> None:
    drafting = DraftCost(8)
    for _ in range(60):
        drafting.weigh(0.04, 0.03)
    assert drafting.pause == 0


def test_a_text_that_repeats_itself_ends_the_pause_and_begins_short_ones() -> None:
    drafting = DraftCost(8)
    for _ in range(40):
        drafting.weigh(0.0, 0.05)
    assert drafting.pause > 4
    drafting.resume()
    assert drafting.pause == 0
    drafting.weigh(0.0, 0.05)
    assert drafting.pause <= 1


def test_a_sequence_that_comes_is_given_as_long_as_the_first() -> None:
    first, later = DraftCost(8), DraftCost(8)
    for _ in range(40):
        later.weigh(0.0, 0.05)
    later.begin()
    for _ in range(3):
        first.weigh(0.0, 0.05)
        later.weigh(0.0, 0.05)
    assert first.pause == later.pause == 0


def test_a_cheap_proposer_costs_a_multiple_of_its_time_and_another_process_is_not_its_doing() -> None:
    drafting = DraftCost(8)
    assert drafting.seconds(0.002, 0, 1.0) == pytest.approx(OVERHEAD * 0.002)
    assert drafting.seconds(5.0, 0, 1.0) == pytest.approx(OVERHEAD * EXPENSIVE)


def test_an_expensive_proposer_costs_what_it_takes_for_a_token() -> None:
    drafting = DraftCost(8)
    assert drafting.seconds(0.8, 4, 1.0) == pytest.approx(0.8)
    drafting.seconds(100.0, 4, 1.0)
    assert drafting.token_seconds < 0.3, "once in a while another process has the core"


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, 0.0])
def test_an_odd_clock_costs_nothing(seconds: float) -> None:
    drafting = DraftCost(8)
    assert drafting.seconds(seconds, 3, 1.0) == 0.0
    assert drafting.token_seconds == 0.0


def test_no_more_tokens_are_asked_for_than_twice_those_taken() -> None:
    drafting = DraftCost(32)
    assert drafting.tokens == 32
    drafting.selected(0)
    assert drafting.tokens == 16
    for _ in range(40):
        drafting.selected(0)
    assert drafting.tokens == LEAST_TOKENS
    drafting.selected(7)
    assert drafting.tokens == 14
    for _ in range(3):
        drafting.selected(drafting.tokens)
    assert drafting.tokens == 32
