"""R(D): the number of a draft's tokens that brings the most tokens a second."""

from __future__ import annotations

from math import inf

import pytest

from ipex_lookahead.controller.acceptance import Acceptance
from ipex_lookahead.controller.objective import best_count, best_first
from ipex_lookahead.drafting.draft import Draft


def test_the_largest_rate_above_the_least_wins() -> None:
    """R = 1, 1.8 / 1.1, 2.3 / 2, 2.4 / 2.1: the second row begins a tile."""
    added, seconds = [0.8, 0.5, 0.1], [1.0, 1.1, 2.0, 2.1]
    assert best_count(1.0, added, seconds, 1.02, inf) == (1, pytest.approx(1.8 / 1.1))
    assert best_count(1.0, added, seconds, 1.7, inf) == (0, 1.7)


def test_a_number_beyond_a_worse_one_is_found() -> None:
    assert best_count(1.0, [0.1, 0.9], [1.0, 1.2, 1.2], 1.02, inf) == (2, pytest.approx(2.0 / 1.2))


def test_no_step_takes_longer_than_it_may() -> None:
    assert best_count(1.0, [0.9, 0.9], [1.0, 1.1, 1.2], 1.02, 1.15) == (1, pytest.approx(1.9 / 1.1))


def test_no_draft_is_no_gain() -> None:
    assert best_count(2.0, [], [1.0], 2.04, inf) == (0, 2.04)


def test_the_tokens_of_a_batch_come_likeliest_first_and_parents_before_children() -> None:
    drafts = [Draft([3, 4], [-1, 0], probs=[0.5, 0.9]), Draft([5], [-1], probs=[0.48])]
    order = best_first([Acceptance().expect(draft) for draft in drafts])
    assert [place for _, place in order] == [0, 1, 0]
    assert [survival for survival, _ in order] == pytest.approx([0.5, 0.48, 0.45])
