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

from ipex_lookahead.controller import kept_records
from ipex_lookahead.controller.kept_costs import forget_costs, known_costs
from ipex_lookahead.controller.kept_records import known_counts, record_of
from tests.support.scripted_engine import markov

CONFIG = {"model_type": "llama", "vocab_size": 12}


class Head:
    """What is asked of one here."""

    def __init__(self, source: Path | None) -> None:
        self.keeper: Any = None
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


def used_up(engine: Any, folder: Path, chains: int = 3) -> None:
    """A program that drafts so many chains and ends."""
    record = record_of(engine, folder)
    assert record_of(engine, folder) is record
    for _ in range(chains):
        record.observe([1, 2], [0.9, 0.9], [1, 3])
    engine.head = None
    del record
    gc.collect()


def test_the_next_program_goes_on(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "costs"
    for run in (1, 2, 3):
        used_up(engine_with(source), folder)
        assert record_of(engine_with(source), folder).tested == [3 * run, 3 * run]
    (file,) = folder.iterdir()
    found = json.loads(file.read_text())
    assert (found["right"], found["tested"]) == ([9, 0], [9, 9])


def test_a_program_that_ends_has_written_it(tmp_path: Path, source: Path) -> None:
    """Also where nothing is collected before."""
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.controller.test_kept_records import engine_with, record_of\n"
        "engine = engine_with(Path(sys.argv[1]))\n"
        "record_of(engine, Path(sys.argv[2])).observe([1], [0.5], [1])\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", program, source, tmp_path / "costs"], check=True, cwd=root, timeout=120)
    assert record_of(engine_with(source), tmp_path / "costs").tested == [1]


def test_a_program_that_goes_on_writes_it_now_and_then(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(kept_records, "monotonic", lambda: now)
    engine, folder = engine_with(source), tmp_path / "costs"
    record_of(engine, folder).observe([1], [0.5], [1])
    record_of(engine, folder)
    assert not folder.exists()
    now += kept_records.AGAIN_SECONDS + 1
    record_of(engine, folder)
    assert len([*folder.iterdir()]) == 1


def test_each_head_of_each_model_has_its_own(tmp_path: Path, source: Path) -> None:
    folder, other = tmp_path / "costs", tmp_path / "other"
    other.mkdir()
    for number, engine in enumerate(
        (engine_with(source), engine_with(other), engine_with(source, low_bit="sym_int8")), 1
    ):
        assert record_of(engine, folder).tests == 0
        used_up(engine, folder, number)
        assert known_counts(
            folder, {"model_type": "llama", "vocab_size": engine.vocab_size}, source if number != 2 else other
        ) == [
            (number, number),
            (0, number),
        ]
    os.utime(source, ns=(5, 5))  # it was made again
    assert record_of(engine_with(source), folder).tests == 0
    assert known_counts(folder, CONFIG | {"model_type": "gpt2"}, other) == []


def test_what_is_not_of_a_file_is_not_kept(tmp_path: Path, source: Path) -> None:
    used_up(engine_with(None), tmp_path / "costs")
    record_of(engine_with(source), None).observe([1], [0.5], [1])
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
        '{"right": [0], "tested": [0]}',
        '{"right": [true], "tested": [1]}',
        '{"right": ["1"], "tested": [1]}',
        json.dumps({"right": [1] * 200, "tested": [1] * 200}),
        json.dumps({"right": [1], "tested": [1 << 60]}),
        " " * (kept_records.FILE_BYTES + 1),
    ],
)
@pytest.mark.rotating(4)
def test_what_cannot_have_been_written_is_not_believed(tmp_path: Path, source: Path, content: str) -> None:
    folder = tmp_path / "costs"
    used_up(engine_with(source), folder)
    (file,) = folder.iterdir()
    file.write_text(content)
    assert record_of(engine_with(source), folder).tests == 0
    used_up(engine_with(source), folder)
    assert record_of(engine_with(source), folder).tests == 3


def test_it_is_forgotten_with_the_costs_and_is_none(tmp_path: Path, source: Path) -> None:
    used_up(engine_with(source), tmp_path)
    assert known_costs(tmp_path) == []
    assert forget_costs(tmp_path, CONFIG) == 1
    assert record_of(engine_with(source), tmp_path).tests == 0
