"""T(n) as the controller reads it: the curve's, brought up to date from time to time."""

from __future__ import annotations

import pytest

from ipex_lookahead.controller.calibration import Calibration
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.controller.row_cost import LEARN_STEPS, RowCost

TWO = Calibration((1, 2), (1.0, 1.5), key_seconds=0.001)
EXPERTS = Calibration((1, 2), (1.0, 1.5), experts=(4, 8), expert_seconds=0.1, all_experts=32)


def test_before_any_step_it_is_the_curve() -> None:
    rows = RowCost(CostCurve(TWO))
    assert [rows.time(n) for n in (1, 2, 3)] == [1.0, 1.5, 2.0]
    assert list(rows.times(2)[:2]) == [1.0, 1.5]


def test_the_first_step_gives_an_assumed_curve_its_unit() -> None:
    rows = RowCost(CostCurve())
    rows.learn(1, 10, 0.02, 0, at_once=False)
    assert rows.time(1) == pytest.approx(0.02)


def test_later_steps_are_learned_together_and_the_length_with_them() -> None:
    curve = CostCurve(TWO)
    rows = RowCost(curve)
    rows.learn(1, 0, 1.0, 0, at_once=False)
    for _ in range(LEARN_STEPS - 1):
        rows.learn(1, 500, 3.0, 0, at_once=False)
    assert rows.time(1) == 1.0
    rows.learn(1, 500, 3.0, 0, at_once=False)
    assert rows.time(1) == curve(1, 500) > 1.7


def test_what_must_be_known_at_once_is() -> None:
    rows = RowCost(CostCurve(EXPERTS))
    assert rows.of_experts
    rows.learn(1, 0, 1.0, 4, at_once=False)
    before = rows.time(2)
    rows.learn(2, 0, 1.0, 4, at_once=True)
    assert rows.time(2) < before


def test_a_forward_that_counted_its_experts_is_priced_by_them() -> None:
    rows = RowCost(CostCurve(EXPERTS))
    assert rows.took(2, 0, 16) > rows.took(2, 0, 8)
    assert rows.took(2, 0, 0) == rows.time(2)
