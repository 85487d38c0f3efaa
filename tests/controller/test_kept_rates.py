"""What is kept of a head from one run to the next."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.controller import kept
from ipex_lookahead.controller.kept import HeadRates, forget_costs, known_costs, known_counts, rates_of
from tests.support.scripted_engine import markov

CONFIG = {"model_type": "llama", "vocab_size": 12}


class Head:
    """What is asked of one here."""

    def __init__(self, source: Path | None) -> None:
        self.rates: Any = None
        self.source = source


def engine_with(source: Path | None, **facts: Any) -> Any:
    engine: Any = markov()
    engine.head = Head(source)
    known = {**engine.describe(), "family": "llama", **facts}
    engine.describe = lambda: known
    return engine


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "head").mkdir()
    return tmp_path / "head"


def count(rates: HeadRates, *right: bool) -> None:
    """Count a chain."""
    rates.fade()
    for depth, one in enumerate(right):
        rates.count(depth, 0.9, one)


def used_up(engine: Any, folder: Path, chains: int = 3) -> None:
    """A program that drafts so many chains and ends."""
    rates = rates_of(engine, folder)
    assert rates_of(engine, folder) is rates
    for _ in range(chains):
        count(rates, True, False)
    engine.head = None
    del rates
    gc.collect()


def test_the_next_program_goes_on(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "costs"
    for run in (1, 2, 3):
        used_up(engine_with(source), folder)
        assert rates_of(engine_with(source), folder).tested == [3 * run, 3 * run]
    (file,) = folder.iterdir()
    found = json.loads(file.read_text())
    assert (found["right"], found["tested"]) == ([9, 0], [9, 9])


def test_a_program_that_ends_has_written_it(tmp_path: Path, source: Path) -> None:
    """Also where nothing is collected before."""
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.controller.test_kept_rates import engine_with, rates_of\n"
        "engine = engine_with(Path(sys.argv[1]))\n"
        "rates_of(engine, Path(sys.argv[2])).count(0, 0.5, True)\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", program, source, tmp_path / "costs"], check=True, cwd=root, timeout=120)
    assert rates_of(engine_with(source), tmp_path / "costs").tested == [1]


def test_a_program_that_goes_on_writes_it_now_and_then(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(kept.time, "monotonic", lambda: now)
    engine, folder = engine_with(source), tmp_path / "costs"
    rates_of(engine, folder).count(0, 0.5, True)
    rates_of(engine, folder)
    assert not folder.exists()
    now += kept.AGAIN_SECONDS + 1
    rates_of(engine, folder)
    assert len([*folder.iterdir()]) == 1


def test_each_head_of_each_model_has_its_own(tmp_path: Path, source: Path) -> None:
    folder, other = tmp_path / "costs", tmp_path / "other"
    other.mkdir()
    for number, engine in enumerate(
        (engine_with(source), engine_with(other), engine_with(source, low_bit="sym_int8")), 1
    ):
        assert rates_of(engine, folder).tests == 0
        used_up(engine, folder, number)
        assert known_counts(
            folder, {"model_type": "llama", "vocab_size": engine.vocab_size}, source if number != 2 else other
        ) == [
            (number, number),
            (0, number),
        ]
    os.utime(source, ns=(5, 5))  # it was made again
    assert rates_of(engine_with(source), folder).tests == 0
    assert known_counts(folder, CONFIG | {"model_type": "gpt2"}, other) == []


def test_what_is_not_of_a_file_is_not_kept(tmp_path: Path, source: Path) -> None:
    used_up(engine_with(None), tmp_path / "costs")
    rates_of(engine_with(source), None).count(0, 0.5, True)
    used_up(engine_with(source), tmp_path / "costs", 0)
    assert not (tmp_path / "costs").exists()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"right": [1]}',
        '{"right": [2], "tested": [1]}',
        '{"right": [1], "tested": [1, 2]}',
        '{"right": [-1], "tested": [1]}',
        '{"right": [true], "tested": [1]}',
        '{"right": ["1"], "tested": [1]}',
        json.dumps({"right": [1], "tested": [1 << 60]}),
        " " * (kept.FILE_BYTES + 1),
    ],
)
@pytest.mark.rotating(4)
def test_what_cannot_have_been_written_is_not_believed(tmp_path: Path, source: Path, content: str) -> None:
    folder = tmp_path / "costs"
    used_up(engine_with(source), folder)
    (file,) = folder.iterdir()
    file.write_text(content)
    assert rates_of(engine_with(source), folder).tests == 0
    used_up(engine_with(source), folder)
    assert rates_of(engine_with(source), folder).tests == 3


def test_it_is_forgotten_with_the_costs_and_is_none(tmp_path: Path, source: Path) -> None:
    used_up(engine_with(source), tmp_path)
    assert known_costs(tmp_path) == []
    assert forget_costs(tmp_path, CONFIG) == 1
    assert rates_of(engine_with(source), tmp_path).tests == 0


def test_rates_begin_with_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"right": [900, 3], "tested": [1000, 10]}))
    rates = HeadRates(tmp_path / "a.json")
    assert rates.chance(0) == pytest.approx(0.9, abs=0.03)
    assert rates.chance(1) == pytest.approx(0.3, abs=0.07)
    assert rates.chance(2) == HeadRates().chance(0)
    assert rates.tests == 1000
    count(rates, True)
    assert (rates.right, rates.tested) == ([901, 3], [1001, 10])


def test_chains_behind_copied_tokens_are_counted_at_their_depth() -> None:
    rates = HeadRates()
    rates.count(2, 0.9, True)
    assert (rates.right, rates.tested, rates.tests) == ([0, 0, 1], [0, 0, 1], 1)
