"""Cost curves that a machine can have, and those that none has."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.controller import calibration
from ipex_lookahead.controller.calibration import Calibration, impossible, possible


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ((1,), (1.0,)),
        ((1, 2, 4, 32), (1.0, 1.0, 1.0, 1.0)),  # waits for memory only
        ((1, 2, 4, 32), (1.0, 2.0, 4.0, 32.0)),  # nothing is shared
        ((1, 4, 5, 8, 9), (1.0, 1.0, 2.0, 2.0, 3.0)),  # tiles of four rows
        ((1, 2, 4), (1.0, 3.0, 3.1)),  # a quick way for one row alone
    ],
)
def test_curves_that_machines_have(rows: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    curve = Calibration(rows, seconds)
    assert impossible(curve) == ""
    assert calibration.from_json(json.loads(json.dumps(calibration.to_json(curve)))) == curve


@pytest.mark.parametrize(
    ("rows", "seconds", "said"),
    [
        ((1, 2, 4), (1.0, 185.34, 186.0), "2 rows take 185.34 times as long as 1"),
        ((1, 4, 5), (1.0, 1.2, 6.0), "5 rows take 5.00 times as long as 4"),  # though five times one row were no wonder
        ((1, 4, 16), (1.0, 1.1, 30.0), "16 rows take 27.27 times as long as 4"),
        ((1, 4), (1.0, 0.9), "4 rows take 0.90 times as long as 1"),
    ],
)
def test_curves_that_no_machine_has(rows: tuple[int, ...], seconds: tuple[float, ...], said: str) -> None:
    curve = Calibration(rows, seconds)
    assert impossible(curve) == said
    assert calibration.from_json(json.loads(json.dumps(calibration.to_json(curve)))) is None


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=len(calibration.ROWS)).map(sorted))
def test_what_is_made_possible_is_the_curve_as_far_as_it_can_be(seconds: list[float]) -> None:
    curve = Calibration(calibration.ROWS[: len(seconds)], tuple(seconds))
    mended = possible(curve)
    assert impossible(mended) == ""
    assert list(mended.seconds) == sorted(mended.seconds)
    assert all(new <= old for new, old in zip(mended.seconds, curve.seconds, strict=True))
    assert possible(mended) == mended
    assert mended.seconds[0] == curve.seconds[0]
