"""The cost curve: what is kept of a calibration, believed and learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.controller import calibration, cost
from ipex_lookahead.controller.calibration import Calibration, calibrate
from ipex_lookahead.controller.cost import CostCurve, EngineCosts
from ipex_lookahead.controller.kept import key_of, load
from ipex_lookahead.engines.identity import identity
from tests.support.timed_engine import USED, free, mixture, steps_of_four, timed_engine, took


def test_context_makes_a_forward_longer() -> None:
    curve = CostCurve(Calibration((1, 4), (1.0, 1.2), 0.001, 0.0005))
    assert curve(1, 1000) == pytest.approx(1.0 + 1.0 + 0.5)
    assert curve(4, 1000) == pytest.approx(1.2 + 1.0 + 2.0)


def test_the_curve_follows_what_is_timed() -> None:
    curve = CostCurve(Calibration((1, 2, 4), (1.0, 1.1, 1.2)))
    for _ in range(200):
        curve.timed(1, 0, 2.0)
        curve.timed(4, 0, 4.0)
    assert curve(1) == pytest.approx(2.0, rel=0.05)
    assert curve(4) == pytest.approx(4.0, rel=0.05)
    assert curve(2) > 1.1, "what is slower for others is slower for those not seen"


def test_one_hiccup_changes_little_and_nonsense_nothing() -> None:
    curve = CostCurve(Calibration((1, 2, 4), (1.0, 1.1, 1.2)))
    curve.timed(4, 0, 500.0)
    assert curve(4) < 1.3
    before = curve.table()
    for seconds in (0.0, -1.0, float("nan")):
        curve.timed(1, 0, seconds)
    assert curve.table() == before


def test_an_assumed_curve_takes_its_unit_from_the_first_time() -> None:
    curve = CostCurve()
    curve.timed(1, 100, 0.02)
    assert curve(1, 100) == pytest.approx(0.02)
    assert curve(4, 100) == pytest.approx(0.02 * 1.18)


@pytest.mark.parametrize("spread", [0.0, 0.4, 1.0, 1.2])
def test_experts_that_rows_share_are_learned_for_other_numbers_of_rows_too(clock: list[float], spread: float) -> None:
    def real(rows: int) -> int:
        return round(USED + spread * (free(rows) - USED))

    curve = CostCurve(calibrate(mixture(clock))[0])
    assert curve(4) == pytest.approx(took(free(4)), rel=0.01)
    for _ in range(100):
        curve.timed(4, 0, took(real(4)), real(4))
    assert curve(4) == pytest.approx(took(real(4)), rel=0.03)
    assert curve(1) == pytest.approx(took(USED), rel=0.03)
    before, after = took(free(8)), took(real(8))
    assert min(before, after) * 0.97 <= curve(8) <= max(before, after) * 1.03
    if spread != 1:
        assert abs(curve(8) - before) > 0.4 * abs(after - before), "half of the news is for all"


def test_experts_that_are_known_are_charged(clock: list[float]) -> None:
    curve = CostCurve(calibrate(mixture(clock))[0])
    assert curve(4, 0, 12) == pytest.approx(took(12))
    assert curve(4, 0, 30) == pytest.approx(took(30))
    assert curve(4, 0, 1) == curve(1), "no step takes less than one row"
    before = curve.table()
    for _ in range(50):
        curve.timed(4, 0, took(free(4)), free(4))
    assert curve(1) == pytest.approx(before[0][1]), "a step of the usual experts and time is no news"


def test_kept_and_found_again(tmp_path: Path, clock: list[float]) -> None:
    engine = timed_engine(clock, steps_of_four)
    said: list[str] = []
    first = EngineCosts(engine, tmp_path / "costs", said.append)
    curve = first.curve()
    assert first.curve() is curve
    assert len(said) == 1
    (file,) = (tmp_path / "costs").iterdir()
    assert file.name == f"{key_of(identity(engine))}.json"
    engine.batches.clear()
    again = EngineCosts(engine, tmp_path / "costs", said.append).curve()
    assert again.table() == curve.table()
    assert len(said) == 1
    assert {tuple(counts) for counts, _, _ in engine.batches} == {(1,)}, "only a look at what one row takes"
    assert len(engine.batches) <= calibration.WARM_UP


@pytest.mark.parametrize("now", [0.5, 1.6])
def test_what_was_measured_while_others_had_the_machine_is_measured_again(
    now: float, tmp_path: Path, clock: list[float]
) -> None:
    """A steady load shows in no round, but in one row that takes half as long now. That it takes longer is no sign."""
    slow = EngineCosts(timed_engine(clock, lambda n: 0.004 * (1 + n / 64)), tmp_path).curve()
    engine = timed_engine(clock, lambda n: 0.004 * now * (1 + n / 4))
    (file,) = tmp_path.iterdir()
    kept = file.read_bytes()
    curve = EngineCosts(engine, tmp_path).curve()
    if now < 1:
        assert curve(4) / curve(1) == pytest.approx(2 / 1.25)
        kept_now = load(file, engine)
        assert kept_now is not None
        assert kept_now.calibration == curve.calibration
    else:
        assert curve.table() == slow.table()
        assert file.read_bytes() == kept


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.rotating(4)
def test_what_was_measured_beside_another_process_is_kept_and_used(
    seed: int, tmp_path: Path, clock: list[float]
) -> None:
    """The other one keeps a core for 4 ms in half of the forwards; the curve is that of the forwards it left alone."""
    rng = np.random.default_rng(seed)
    engine = timed_engine(clock, lambda rows: 0.002 * (1 + rows / 8) + 0.004 * (rng.random() < 0.5))
    said: list[str] = []
    curve = EngineCosts(engine, tmp_path, said.append).curve()
    (file,) = tmp_path.iterdir()
    kept = load(file, engine)
    assert kept is not None
    assert kept.noisy
    assert kept.calibration == curve.calibration
    assert curve(8) / curve(1) == pytest.approx(2.0 / 1.125, rel=0.35)
    again = EngineCosts(engine, tmp_path, said.append).curve()
    assert again.table() == curve.table()
    assert len(said) == 1, "a machine that is always busy does not measure at every start"


def busy_for(clock: list[float], forwards: int, factor: float = 2.0) -> Any:
    """Every other forward of the first so many takes so much longer."""
    count = iter(range(10**6))
    return timed_engine(
        clock, lambda rows: steps_of_four(rows) * (factor if (i := next(count)) < forwards and i % 2 else 1.0)
    )


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, which a test turns on."""
    now = [1e9]
    monkeypatch.setattr(cost.time, "time", lambda: now[0])
    return now


def test_a_noisy_calibration_is_measured_again_when_it_is_quiet_and_some_time_has_passed(
    tmp_path: Path, clock: list[float], day: list[float]
) -> None:
    said: list[str] = []
    EngineCosts(busy_for(clock, 10**6), tmp_path, said.append).curve()
    (file,) = tmp_path.iterdir()
    quiet, busy = timed_engine(clock, steps_of_four), busy_for(clock, 10**6)

    def noisy() -> bool:
        found = load(file, quiet)
        assert found is not None
        return found.noisy

    assert noisy()
    EngineCosts(quiet, tmp_path, said.append).curve()
    assert len(said) == 1, "not at once"
    day[0] += cost.AGAIN_SECONDS
    EngineCosts(busy, tmp_path, said.append).curve()
    assert len(said) == 1, "nor while it is busy still"
    EngineCosts(quiet, tmp_path, said.append).curve()
    assert len(said) == 2
    assert not noisy()
    day[0] += 1000 * cost.AGAIN_SECONDS
    EngineCosts(quiet, tmp_path, said.append).curve()
    assert len(said) == 2, "what was measured in quiet stays"


def test_of_two_noisy_calibrations_the_less_disturbed_stays(
    tmp_path: Path, clock: list[float], day: list[float]
) -> None:
    engine = busy_for(clock, 10**6, 1.5)
    EngineCosts(engine, tmp_path).curve()
    (file,) = tmp_path.iterdir()
    first = load(file, engine)
    assert first is not None
    day[0] += cost.AGAIN_SECONDS
    count = iter(range(10**6))  # looks quiet at the start, and does not stay so

    def later(rows: int) -> float:
        return steps_of_four(rows) * (2.0 if (i := next(count)) > 60 and i % 2 else 1.0)

    EngineCosts(timed_engine(clock, later), tmp_path).curve()
    second = load(file, engine)
    assert second is not None
    assert (second.calibration, second.disturbance) == (first.calibration, first.disturbance)
    assert second.at == first.at + cost.AGAIN_SECONDS, "so the next try has time too"


def test_a_noisy_calibration_whose_one_row_takes_much_less_now_is_measured_again_later(
    tmp_path: Path, clock: list[float], day: list[float]
) -> None:
    """On a machine that is always busy this is so at every start: it must not measure each time."""
    said: list[str] = []
    rng = np.random.default_rng(0)
    slow = timed_engine(clock, lambda rows: 0.01 * (1 + rows / 8) * (1 + 0.6 * rng.random()))
    EngineCosts(slow, tmp_path, said.append).curve()
    engine = timed_engine(clock, steps_of_four)
    EngineCosts(engine, tmp_path, said.append).curve()
    assert len(said) == 1
    day[0] += cost.AGAIN_SECONDS
    curve = EngineCosts(engine, tmp_path, said.append).curve()
    assert len(said) == 2
    assert curve(1) == pytest.approx(0.001)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.rotating(4)
def test_a_hiccup_is_neither_believed_nor_called_noise(seed: int, tmp_path: Path, clock: list[float]) -> None:
    forwards_of_rounds = len(calibration.ROWS) * calibration.ROUNDS
    hiccups = set(np.random.default_rng(seed).choice(forwards_of_rounds, 3, replace=False) + calibration.WARM_UP)
    forwards = iter(range(1000))
    engine = timed_engine(clock, lambda rows: 0.002 * (1 + rows / 8) + 0.02 * (next(forwards) in hiccups))
    curve = EngineCosts(engine, tmp_path / "costs").curve()
    assert curve(4) / curve(1) == pytest.approx(1.5 / 1.125)
    assert curve(8) / curve(1) == pytest.approx(2.0 / 1.125)
    (file,) = (tmp_path / "costs").iterdir()
    kept = load(file, engine)
    assert kept is not None
    assert kept.calibration == curve.calibration
    assert not kept.noisy


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path, clock: list[float]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert EngineCosts(timed_engine(clock, steps_of_four), tmp_path / "file" / "costs").curve()(1) > 0


# ---- what a machine in use makes of a curve --------------------------------------------------------------------------


def busy_at(rows: int, factor: float) -> Any:
    """Every forward of so many rows meets a busy machine."""
    return lambda n: steps_of_four(n) * (factor if n == rows else 1.0)


def test_an_impossible_curve_is_measured_again_then_and_when_it_is_quiet(
    tmp_path: Path, clock: list[float], day: list[float]
) -> None:
    engine = timed_engine(clock, busy_at(2, 20.0))
    curve = EngineCosts(engine, tmp_path).curve()
    assert len([1 for counts, _, _ in engine.batches if counts == [2]]) == calibration.MAX_ROUNDS, "more rounds"
    assert curve(2) / curve(1) == pytest.approx(1.0), "no more than three rows take"
    (file,) = tmp_path.iterdir()
    kept = load(file, engine)
    assert kept is not None
    assert kept.noisy
    assert kept.calibration == curve.calibration
    day[0] += cost.AGAIN_SECONDS
    quiet = EngineCosts(timed_engine(clock, steps_of_four), tmp_path).curve()
    assert quiet(2) == pytest.approx(0.001)


def test_a_disturbance_that_is_over_leaves_no_trace(tmp_path: Path, clock: list[float]) -> None:
    over = 0.5  # seconds from now
    engine = timed_engine(clock, lambda n: steps_of_four(n) * (185.34 if n == 2 and clock[0] < over else 1.0))
    curve = EngineCosts(engine, tmp_path).curve()
    assert curve(2) == pytest.approx(0.001)
    assert len(list(tmp_path.iterdir())) == 1


def test_one_round_alone_is_believed_only_where_one_row_takes_what_it_took_before(
    tmp_path: Path, clock: list[float]
) -> None:
    """Of an engine so slow that there is time for one round, nothing else tells whether the machine was busy."""
    forwards = iter(range(1000))
    EngineCosts(timed_engine(clock, lambda n: 1.0 if next(forwards) < 2 else 1.6), tmp_path).curve()
    (file,) = tmp_path.iterdir()
    engine = timed_engine(clock, lambda n: 1.0)
    kept = load(file, engine)
    assert kept is not None
    assert kept.noisy
    file.unlink()
    EngineCosts(engine, tmp_path).curve()
    kept = load(file, engine)
    assert kept is not None
    assert not kept.noisy
