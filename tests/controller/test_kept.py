"""Calibrations on disk: what is believed, what is shown, what goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.controller import calibration, kept
from ipex_lookahead.controller.calibration import Calibration, calibrate
from ipex_lookahead.controller.cost import EngineCosts
from ipex_lookahead.controller.kept import (
    MAX_FILES,
    Measured,
    cost_folder,
    file_of,
    forget_costs,
    key_of,
    known_costs,
    load,
    save,
)
from ipex_lookahead.engines import identity
from ipex_lookahead.engines.native.core import core_build
from tests.support.scripted_engine import markov
from tests.support.timed_engine import mixture, steps_of_four, timed_engine
from tests.support.tiny import TinyLlama

SMALL = Measured(Calibration((1, 4), (0.004, 0.005)), 1.1, 1e9)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    engine = markov()
    save(tmp_path / "a.json", SMALL, engine)
    assert load(tmp_path / "a.json", engine) == SMALL
    assert not SMALL.noisy
    assert Measured(SMALL.calibration, 1.4, 0.0).noisy


def test_experts_are_kept_and_found_again(tmp_path: Path, clock: list[float]) -> None:
    engine = mixture(clock)
    measured = Measured(calibrate(engine)[0], 1.0, 0.0)
    save(tmp_path / "costs.json", measured, engine)
    assert load(tmp_path / "costs.json", engine) == measured


def test_another_machine_or_model_is_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = markov()
    keys = {key_of(identity.identity(engine)), key_of(identity.identity(markov(vocab_size=13)))}
    facts = engine.describe()
    for name, value in (("threads", 9), ("isa", "avx2"), ("low_bit", "sym_int8"), ("weight_bytes", 1)):
        monkeypatch.setattr(engine, "describe", lambda name=name, value=value: {**facts, name: value})
        keys.add(key_of(identity.identity(engine)))
    monkeypatch.setattr(identity, "processor", lambda: "another")
    keys.add(key_of(identity.identity(engine)))
    assert len(keys) == 7


GOOD = {"format": kept.FORMAT, "kernels": "", "disturbance": 1.2, "at": 5.0,
        "rows": [1, 4], "seconds": [0.1, 0.2], "key_seconds": 0.0, "key_row_seconds": 1e-6}  # fmt: skip


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
                {"format": kept.FORMAT - 1},
                {"format": None},
                {"kernels": "another"},
                {"disturbance": None},
                {"disturbance": True},
                {"disturbance": -1},
                {"disturbance": 1e300},
                {"at": "yesterday"},
                {"at": -5},
            )
        ),
        b" " * (kept.FILE_BYTES + 1),
    ],
)
def test_a_damaged_file_is_measured_again_and_replaced(content: bytes, tmp_path: Path, clock: list[float]) -> None:
    engine = timed_engine(clock, steps_of_four)
    file = tmp_path / f"{key_of(identity.identity(engine))}.json"
    file.write_bytes(json.dumps(GOOD).encode())
    assert load(file, engine) == Measured(Calibration((1, 4), (0.1, 0.2), 0.0, 1e-6), 1.2, 5.0)
    file.write_bytes(content)
    assert load(file, engine) is None
    assert EngineCosts(engine, tmp_path).curve()(4) == pytest.approx(0.001)
    assert load(file, engine) is not None
    assert [f.name for f in tmp_path.iterdir()] == [file.name], "no temporary file is left"


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    save(tmp_path / "a.json", SMALL, markov())
    assert not list(tmp_path.iterdir())


# ---- what is known, and forgotten ------------------------------------------------------------------------------------


def keep(folder: Path, name: str, **facts: Any) -> None:
    """A file as an engine with those facts would leave it, of this processor."""
    of = {"processor": identity.processor(), "engine": "native", "vocab_size": 96, **facts}
    measured = {"format": kept.FORMAT, "kernels": core_build(), "disturbance": 1.1, "at": 0.0}
    content = {"engine": of, **measured, **calibration.to_json(Calibration((1, 4), (0.004, 0.005)))}
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
    (tmp_path / f"{kept.TEMPORARY}left over").write_text("{")
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
    save(tmp_path / "a.json", Measured(Calibration((1, 2), (0.001, 0.185)), 1.1, 0.0), markov())
    assert known_costs(tmp_path) == []


def test_what_was_measured_on_other_kernels_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, "native")
    keep(tmp_path, "torch", engine="torch", family="llama")
    assert {c["engine"] for c in known_costs(tmp_path)} == {"native", "torch"}
    monkeypatch.setattr(identity, "core_build", lambda: "another")
    assert [c["engine"] for c in known_costs(tmp_path)] == ["torch"]


# ---- versions, and how many there may be -----------------------------------------------------------------------------


class Rebuilt:
    """An engine that names its kernels."""

    def __init__(self, engine: Any, kernels: str) -> None:
        self.kernels = kernels
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def test_other_kernels_are_measured_anew_in_the_same_file(tmp_path: Path, clock: list[float]) -> None:
    said: list[str] = []
    for number, version in enumerate(("a", "a", "b"), 1):
        engine: Any = Rebuilt(timed_engine(clock, steps_of_four), version)
        EngineCosts(engine, tmp_path, said.append).curve()
        assert len(said) == max(1, number - 1)
        (file,) = tmp_path.iterdir()
        assert json.loads(file.read_text())["kernels"] == version


def test_the_native_core_tells_its_build() -> None:
    assert len(core_build()) == 16


def test_the_files_used_last_are_kept(tmp_path: Path, clock: list[float]) -> None:
    now = time.time()
    engine = timed_engine(clock, steps_of_four)
    save(file_of(tmp_path, engine), SMALL, engine)
    os.utime(file_of(tmp_path, engine), (now - 1e6, now - 1e6))
    for number in range(MAX_FILES + 9):
        file = tmp_path / f"{number}.json"
        file.write_text("{}")
        os.utime(file, (now - 1000 - number, now - 1000 - number))
    for name, age in (("old", 2 * kept.LEFT_OVER_SECONDS), ("being written", 1.0)):
        file = tmp_path / f"{kept.TEMPORARY}{name}"
        file.write_text("{")
        os.utime(file, (now - age, now - age))
    (tmp_path / "somebody's.txt").write_text("not ours")
    kept.used(file_of(tmp_path, engine))
    save(tmp_path / "new.json", SMALL, engine)
    left = {file.name for file in tmp_path.iterdir()}
    others = {f"{number}.json" for number in range(MAX_FILES - 2)}
    assert left == others | {
        "new.json", file_of(tmp_path, engine).name, f"{kept.TEMPORARY}being written", "somebody's.txt"
    }  # fmt: skip


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPEX_LOOKAHEAD_COSTS", "/a/b")
    assert cost_folder() == Path("/a/b")
    monkeypatch.setenv("IPEX_LOOKAHEAD_COSTS", "")
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", "/c")
    assert cost_folder() == Path("/c/costs")


def test_no_test_writes_among_the_users_own() -> None:
    code = "from ipex_lookahead.controller.kept import cost_folder; print(cost_folder())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(cost_folder()) == os.environ["IPEX_LOOKAHEAD_COSTS"]
