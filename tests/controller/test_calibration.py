"""What is measured of an engine before anything is drafted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipex_lookahead.controller import calibration
from ipex_lookahead.controller.adaptive import AdaptiveController
from ipex_lookahead.controller.calibration import Calibration, calibrate
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.engines.api import PhaseTime, StepOutput
from tests.support.scripted_engine import ScriptedEngine
from tests.support.timed_engine import EXPERTS, USED, free, mixture, steps_of_four, timed_engine, took


def test_calibration_measures_each_number_of_rows(clock: list[float]) -> None:
    curve = CostCurve(calibrate(timed_engine(clock, steps_of_four))[0])
    for rows in (1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 16, 17, 20):
        assert curve(rows) == pytest.approx(steps_of_four(rows)), rows
    assert curve(4) < 1.01 * curve(1)
    assert curve(5) > 1.9 * curve(4), "the tile's edge is a step, not a slope"
    assert curve(64) > curve(32) > curve(31)


def built_at_first_use(clock: list[float], seconds: Any, built: float = 7.0) -> ScriptedEngine:
    """As on a GPU: kernels for 1, up to 4, and more rows are built at their first step; each count is bound once."""
    engine, known = timed_engine(clock, seconds), set[tuple[str, int]]()
    forward = engine.forward

    def slow_at_first(batch: Any) -> Any:
        rows = len(batch.tokens)
        for key, price in ((("program", min(n for n in (1, 4, 99) if n >= rows)), built), (("bound", rows), 0.05)):
            clock[0] += 0.0 if key in known else price
            known.add(key)
        return forward(batch)

    engine.forward = slow_at_first  # type: ignore[method-assign]
    engine.warms_up = True  # type: ignore[attr-defined]
    return engine


def test_building_kernels_is_no_cost_of_a_step(clock: list[float]) -> None:
    """Rows that cost nearly nothing on a GPU are known as such from the first calibration on, and drafted in full."""
    cheap: Any = lambda rows: 0.007 * (1 + 0.01 * rows)  # noqa: E731
    found, disturbance = calibrate(built_at_first_use(clock, cheap))
    assert disturbance < calibration.NOISY
    for rows, seconds in zip(found.rows, found.seconds, strict=True):
        assert seconds == pytest.approx(cheap(rows)), rows
    steep, _ = calibrate(built_at_first_use(clock, lambda rows: 0.007 * rows))
    drafted = []
    for curve in (found, steep):
        (draft,) = AdaptiveController(CostCurve(curve), 15).select([0], [Draft(range(15), range(-1, 14))])
        drafted.append(len(draft))
    assert drafted[0] > 4 > drafted[1] == 0, drafted


def test_calibration_ends(clock: list[float]) -> None:
    engine = timed_engine(clock, lambda rows: 0.004 * (1 + rows / 20))
    calibrate(engine)
    assert clock[0] < 0.6
    assert len([1 for counts, _, _ in engine.batches if counts == [32]]) == calibration.ROUNDS
    slow = timed_engine(clock, lambda rows: 0.1 * (1 + rows / 20))
    calibrate(slow)
    assert len([1 for counts, _, _ in slow.batches if counts == [32]]) == 1


@pytest.mark.parametrize(("alone", "most"), [(0.1, 2.5), (1.0, 10.0)])
def test_slow_engines_are_measured_at_fewer_points(clock: list[float], alone: float, most: float) -> None:
    curve = CostCurve(calibrate(timed_engine(clock, lambda rows: alone * (1 + rows / 20)))[0])
    assert clock[0] < most
    assert curve(4) == pytest.approx(alone * 1.2)


def test_noise_is_not_believed(clock: list[float]) -> None:
    """A hiccup in one round is no cost, and more rows are never cheaper."""
    rng = np.random.default_rng(0)
    engine = timed_engine(clock, lambda rows: 0.001 * (1 + rows / 8) * (10.0 if rng.random() < 0.05 else 1.0))
    curve = CostCurve(calibrate(engine, patience=10.0)[0])
    values = [seconds for _, seconds in curve.table()]
    assert values == sorted(values)
    assert curve(4) / curve(1) == pytest.approx(1.5 / 1.125)


def test_a_short_context_is_not_exceeded(clock: list[float]) -> None:
    calibration, _ = calibrate(timed_engine(clock, steps_of_four, max_context=7))
    assert calibration.rows[-1] == 7


def test_what_an_expert_costs_is_measured(clock: list[float]) -> None:
    found, _ = calibrate(mixture(clock))
    assert found.expert_seconds == pytest.approx(0.001)
    assert found.experts == tuple(map(free, found.rows))
    assert found.all_experts == EXPERTS
    dense, _ = calibrate(timed_engine(clock, steps_of_four))
    assert (dense.experts, dense.expert_seconds, dense.all_experts) == ((), 0.0, 0)


def test_an_expert_takes_no_more_than_a_step_of_them(clock: list[float]) -> None:
    """Whatever disturbed the rows of one token, or those of several."""
    engine = mixture(clock)
    quiet = engine.forward

    def disturbed(batch: Any) -> Any:
        clock[0] += 5.0 if len(set(batch.tokens.tolist())) == calibration.SAME_ROWS else 0.0
        return quiet(batch)

    engine.forward = disturbed  # type: ignore[method-assign]
    found, _ = calibrate(engine)
    assert 0 < found.expert_seconds <= found.seconds[0] / found.experts[0]


def test_rows_of_a_calibration_that_share_their_experts_promise_nothing(clock: list[float]) -> None:
    """Tokens that a model was not trained on go the same ways; those of a text will not."""
    curve = CostCurve(calibrate(mixture(clock, lambda rows: USED + rows - 1))[0])
    for rows in (1, 2, 4, 8, 16):
        assert curve(rows) == pytest.approx(took(free(rows)), rel=0.02), rows


@pytest.mark.parametrize(
    "change",
    [
        {"experts": [8]},
        {"experts": "8"},
        {"experts": [8, 4]},
        {"experts": [0, 8]},
        {"experts": [8, 1.5]},
        {"experts": [True, 8]},
        {"expert_seconds": -1.0},
        {"expert_seconds": None},
        {"all_experts": 11},
        {"all_experts": "12"},
        {"all_experts": None},
    ],
)
def test_experts_that_cannot_be_are_not_believed(change: dict[str, Any]) -> None:
    good = {"rows": [1, 2], "seconds": [1.0, 1.5], "key_seconds": 0.0, "key_row_seconds": 0.0}
    mixture = {**good, "experts": [8, 12], "expert_seconds": 0.1, "all_experts": 12}
    assert calibration.from_json(mixture) == Calibration((1, 2), (1.0, 1.5), 0.0, 0.0, (8, 12), 0.1, 12)
    assert calibration.from_json({**mixture, **change}) is None


def test_a_forward_is_measured_after_others_of_its_size(clock: list[float]) -> None:
    """What the rows before have left in the caches counts: 1 ms more a factor of rows that the one before had more."""
    before = [1]

    def after(rows: int) -> float:
        more, before[0] = before[0] / rows, rows
        return 0.002 + 0.0001 * rows + (0.001 * more if more > 2 else 0.0)

    curve = CostCurve(calibrate(timed_engine(clock, after))[0])
    for rows in calibration.ROWS:
        assert curve(rows) == pytest.approx(0.002 + 0.0001 * rows), rows


def test_weights_come_into_the_caches_before_anything_is_measured(clock: list[float]) -> None:
    forwards = iter(range(10_000))
    engine = timed_engine(clock, lambda n: 0.001 * (1 + n / 8) * max(1.0, 3.0 - 0.25 * next(forwards)))
    curve, disturbance = calibrate(engine)
    assert disturbance == pytest.approx(1.0)
    assert curve.seconds[0] == pytest.approx(0.001125)


def with_context(
    clock: list[float], a_position: float, a_row: float, most: float, max_context: int = 4096
) -> ScriptedEngine:
    """An engine that can time its attention, which takes ``most`` a position whatever the rows."""
    engine = timed_engine(clock, steps_of_four, max_context)
    new, forward, facts = engine.new_cache, engine.forward, engine.describe()
    blanks = []

    def new_cache(blank: int = 0) -> Any:
        blanks.append(blank)
        return new()

    def timed(batch: Any) -> StepOutput:
        output = forward(batch)
        if batch.wants.timings:
            seconds = blanks[-1] * min(a_position + a_row * len(batch.tokens), most)
            output.timings = [PhaseTime("qkv", 1, 9.0, 9.0, 0), PhaseTime("attention", 1, seconds, seconds, 0)]
        return output

    engine.blanks = blanks  # type: ignore[attr-defined]
    engine.new_cache = new_cache  # type: ignore[method-assign, assignment]
    engine.forward = timed  # type: ignore[method-assign]
    engine.times_phases = True  # type: ignore[attr-defined]
    engine.describe = lambda: {**facts, "kv_bytes_per_token": 1024, "weight_bytes": 1 << 20}  # type: ignore[method-assign]
    return engine


def test_what_a_position_of_context_costs_is_measured(clock: list[float]) -> None:
    found, _ = calibrate(with_context(clock, 3e-6, 2e-6, most=1.0))
    assert (found.key_seconds, found.key_row_seconds) == pytest.approx((3e-6, 2e-6))


def test_rows_that_wait_for_the_same_keys_cost_nothing_more(clock: list[float]) -> None:
    found, _ = calibrate(with_context(clock, 5e-6, 1e-6, most=4e-6))
    assert (found.key_seconds, found.key_row_seconds) == pytest.approx((4e-6, 0.0))


def test_rows_alone_make_the_price(clock: list[float]) -> None:
    """Of eight rows that take more than eight times one row nothing becomes negative."""
    found, _ = calibrate(with_context(clock, -1e-6, 2e-6, most=1.0))
    assert (found.key_seconds, found.key_row_seconds) == pytest.approx((0.0, 1e-6))


@pytest.mark.parametrize(("max_context", "positions"), [(4096, 1024), (1000, 768), (264, 256)])
def test_context_is_measured_as_far_as_there_is_some(clock: list[float], max_context: int, positions: int) -> None:
    engine = with_context(clock, 3e-6, 2e-6, 1.0, max_context)
    calibrate(engine)
    assert engine.blanks[-1] == positions  # type: ignore[attr-defined]


@pytest.mark.parametrize("reason", ["a short context", "an engine that cannot tell", "no memory"])
def test_context_costs_nothing_where_it_cannot_be_measured(
    clock: list[float], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = with_context(clock, 1.0, 1.0, 10.0, 263 if reason == "a short context" else 4096)
    if reason == "an engine that cannot tell":
        del engine.times_phases  # type: ignore[attr-defined]
    if reason == "no memory":
        new = engine.new_cache

        def new_cache(blank: int = 0) -> Any:
            if blank:
                raise MemoryError
            return new()

        monkeypatch.setattr(engine, "new_cache", new_cache)
    found, _ = calibrate(engine)
    assert (found.key_seconds, found.key_row_seconds) == (0.0, 0.0)
