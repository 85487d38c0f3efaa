"""The cost curve: what is kept of a calibration, believed and learned."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.decoding import calibration, cost
from ipex_lookahead.decoding.calibration import Calibration, calibrate
from ipex_lookahead.decoding.cost import (
    CostCurve,
    EngineCosts,
    forget_costs,
    known_costs,
    load,
    save,
)
from tests.support.scripted_engine import markov
from tests.support.timed_engine import USED, free, mixture, steps_of_four, timed_engine, took
from tests.support.tiny import TinyLlama


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


def test_experts_are_kept_and_found_again(tmp_path: Path, clock: list[float]) -> None:
    engine = mixture(clock)
    found, _ = calibrate(engine)
    save(tmp_path / "costs.json", found, engine)
    assert load(tmp_path / "costs.json") == found


def test_kept_and_found_again(tmp_path: Path, clock: list[float]) -> None:
    engine = timed_engine(clock, steps_of_four)
    said: list[str] = []
    first = EngineCosts(engine, tmp_path / "costs", said.append)
    curve = first.curve()
    assert first.curve() is curve
    assert len(said) == 1
    (file,) = (tmp_path / "costs").iterdir()
    assert file.name == f"{cost.key_of(engine)}.json"
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
        assert load(file) == curve.calibration
    else:
        assert curve.table() == slow.table()
        assert file.read_bytes() == kept


def test_what_was_quick_is_not_written(tmp_path: Path, clock: list[float]) -> None:
    EngineCosts(timed_engine(clock, lambda rows: 1e-6), tmp_path / "costs").curve()
    assert not (tmp_path / "costs").exists()


def test_what_was_disturbed_is_not_written(tmp_path: Path, clock: list[float]) -> None:
    now = [1.0]

    def ever_slower(rows: int) -> float:
        now[0] *= 1.05
        return 0.001 * now[0]

    EngineCosts(timed_engine(clock, ever_slower), tmp_path / "costs").curve()
    assert not (tmp_path / "costs").exists()


@pytest.mark.parametrize("seed", range(20))
def test_beside_another_process_nothing_is_written(seed: int, tmp_path: Path, clock: list[float]) -> None:
    """The other one keeps a core for 4 ms in half of the forwards: what the curve says then is true only then."""
    rng = np.random.default_rng(seed)
    engine = timed_engine(clock, lambda rows: 0.002 * (1 + rows / 8) + 0.004 * (rng.random() < 0.5))
    EngineCosts(engine, tmp_path / "costs").curve()
    assert not (tmp_path / "costs").exists()


@pytest.mark.parametrize("seed", range(20))
def test_a_hiccup_is_neither_believed_nor_a_reason_not_to_write(seed: int, tmp_path: Path, clock: list[float]) -> None:
    forwards_of_rounds = len(calibration.ROWS) * calibration.ROUNDS
    hiccups = set(np.random.default_rng(seed).choice(forwards_of_rounds, 3, replace=False) + calibration.WARM_UP)
    forwards = iter(range(1000))
    engine = timed_engine(clock, lambda rows: 0.002 * (1 + rows / 8) + 0.02 * (next(forwards) in hiccups))
    curve = EngineCosts(engine, tmp_path / "costs").curve()
    assert curve(4) / curve(1) == pytest.approx(1.5 / 1.125)
    assert curve(8) / curve(1) == pytest.approx(2.0 / 1.125)
    (file,) = (tmp_path / "costs").iterdir()
    assert load(file) == curve.calibration


def test_another_machine_or_model_is_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = markov()
    keys = {cost.key_of(engine), cost.key_of(markov(vocab_size=13))}
    facts = engine.describe()
    for name, value in (("threads", 9), ("isa", "avx2"), ("low_bit", "sym_int8"), ("weight_bytes", 1)):
        monkeypatch.setattr(engine, "describe", lambda name=name, value=value: {**facts, name: value})
        keys.add(cost.key_of(engine))
    monkeypatch.setattr(cost, "processor", lambda: "another")
    keys.add(cost.key_of(engine))
    assert len(keys) == 7


GOOD = {"rows": [1, 4], "seconds": [0.1, 0.2], "key_seconds": 0.0, "key_row_seconds": 1e-6}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"rows": NaN}',
        *(
            json.dumps(GOOD | change).encode()
            for change in (
                {"rows": [2, 4]},
                {"rows": [1, 1]},
                {"rows": [4, 1]},
                {"rows": [1]},
                {"rows": [True, 4]},
                {"rows": [1, 10**9]},
                {"rows": "14"},
                {"rows": [], "seconds": []},
                {"seconds": [0.2, 0.1]},
                {"seconds": [0, 0.1]},
                {"seconds": [-1, 0.1]},
                {"seconds": [0.1, 1e9]},
                {"seconds": [0.1, "0.2"]},
                {"seconds": [0.001, 0.185]},
                {"key_seconds": None},
                {"key_seconds": -1},
                {"key_row_seconds": True},
            )
        ),
        b" " * (cost.FILE_BYTES + 1),
    ],
)
def test_a_damaged_file_is_measured_again_and_replaced(content: bytes, tmp_path: Path, clock: list[float]) -> None:
    engine = timed_engine(clock, steps_of_four)
    file = tmp_path / f"{cost.key_of(engine)}.json"
    file.write_bytes(json.dumps(GOOD).encode())
    assert load(file) == Calibration((1, 4), (0.1, 0.2), 0.0, 1e-6)
    file.write_bytes(content)
    assert load(file) is None
    assert EngineCosts(engine, tmp_path).curve()(4) == pytest.approx(0.001)
    assert load(file) is not None
    assert [f.name for f in tmp_path.iterdir()] == [file.name], "no temporary file is left"


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path, clock: list[float]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert EngineCosts(timed_engine(clock, steps_of_four), tmp_path / "file" / "costs").curve()(1) > 0


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    save(tmp_path / "a.json", Calibration((1,), (1.0,)), markov())
    assert not list(tmp_path.iterdir())


# ---- what a machine in use makes of a curve --------------------------------------------------------------------------


def busy_at(rows: int, factor: float) -> Any:
    """Every forward of so many rows meets a busy machine."""
    return lambda n: steps_of_four(n) * (factor if n == rows else 1.0)


def test_an_impossible_curve_is_measured_again_then_and_by_the_next_process(tmp_path: Path, clock: list[float]) -> None:
    engine = timed_engine(clock, busy_at(2, 185.34))
    curve = EngineCosts(engine, tmp_path).curve()
    assert len([1 for counts, _, _ in engine.batches if counts == [2]]) > calibration.ROUNDS, "once more"
    assert not list(tmp_path.iterdir())
    assert [curve(n) / curve(1) for n in (1, 2, 4)] == pytest.approx([1.0, 2.0, 4.0]), "as dear as can be, for now"
    quiet = EngineCosts(timed_engine(clock, steps_of_four), tmp_path).curve()
    assert quiet(2) == pytest.approx(0.001)
    assert len(list(tmp_path.iterdir())) == 1


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
    assert not list(tmp_path.iterdir())
    EngineCosts(timed_engine(clock, lambda n: 1.0), tmp_path).curve()
    assert len(list(tmp_path.iterdir())) == 1


# ---- what is known, and forgotten ------------------------------------------------------------------------------------


def keep(folder: Path, name: str, **facts: Any) -> None:
    """A file as an engine with those facts would leave it, of this processor."""
    of = {"processor": cost.processor(), "engine": "native", "vocab_size": 96, **facts}
    content = {"engine": of, **calibration.to_json(Calibration((1, 4), (0.004, 0.005)))}
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_known_and_forgotten_are_those_of_the_model_asked_for(tmp_path: Path) -> None:
    config = TinyLlama(layers=2, kv_heads=2, head_dim=16).config("float32")
    keep(tmp_path, "fp16", kv_bytes_per_token=2 * 2 * 64, weight_bytes=1)
    keep(tmp_path, "int8", kv_bytes_per_token=2 * 2 * 40, weight_bytes=2)
    keep(tmp_path, "torch", engine="torch", family="llama", kv_bytes_per_token=1, weight_bytes=3)
    keep(tmp_path, "other family", engine="torch", family="stablelm", kv_bytes_per_token=1, weight_bytes=4)
    keep(tmp_path, "other shape", kv_bytes_per_token=2 * 3 * 64, weight_bytes=5)
    keep(tmp_path, "other words", kv_bytes_per_token=2 * 2 * 64, vocab_size=97, weight_bytes=6)
    keep(tmp_path, "other machine", processor="another", kv_bytes_per_token=2 * 2 * 64, weight_bytes=7)
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / f"{cost.TEMPORARY}left over").write_text("{")
    (tmp_path / "somebody's.txt").write_text("not ours")
    assert {c["weight_bytes"] for c in known_costs(tmp_path)} == {1, 2, 3, 4, 5, 6}
    assert {c["weight_bytes"] for c in known_costs(tmp_path, config)} == {1, 2, 3}
    assert {c["weight_bytes"] for c in known_costs(tmp_path, {"model_type": "stablelm", "vocab_size": 96})} == {4}
    assert forget_costs(tmp_path, config) == 4, "another machine's too"
    assert known_costs(tmp_path, config) == []
    assert {c["weight_bytes"] for c in known_costs(tmp_path)} == {4, 5, 6}
    assert forget_costs(tmp_path) == 5
    assert [file.name for file in tmp_path.iterdir()] == ["somebody's.txt"]
    assert forget_costs(tmp_path) == forget_costs(tmp_path / "nowhere") == 0


def test_what_no_machine_could_have_is_not_shown(tmp_path: Path) -> None:
    save(tmp_path / "a.json", Calibration((1, 2), (0.001, 0.185)), markov())
    assert known_costs(tmp_path) == []
