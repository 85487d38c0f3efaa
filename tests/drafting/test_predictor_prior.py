"""scripts/predictor_prior.py: what it counts is what the predictor learns, and only numbers of the tables change."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from ipex_lookahead.bench.recording import Answer, Recording, save
from ipex_lookahead.controller.calibration import Calibration
from tests.support.partial_matching import ESCAPES, PRIOR, RANK_PRIOR, RANKS, Twin

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = 2 * 6 * 7 + 2 * 8


@pytest.fixture
def prior(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("predictor_prior", ROOT / "scripts" / "predictor_prior.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LEAST", 1)
    return module


def answer(seed: int) -> Answer:
    """Few tokens, so that contexts come again, and too short for evidence to fade."""
    drawn = random.Random(seed)
    output = [drawn.randrange(5) for _ in range(24)]
    return Answer([3], output, [drawn.sample(range(5), 4) for _ in output])


def test_what_is_counted_is_what_the_predictor_learns(prior: ModuleType) -> None:
    answers = [answer(1), answer(2)]
    found = [0 if one is None else one for one in prior.shares(answers)]
    trials, hits = [0.0] * NUMBERS, [0.0] * NUMBERS
    store: list[list[int]] = []
    for one in answers:
        twin = Twin(8, 8, store)
        twin.begin(one.prompt)
        for token, top in zip(one.output, one.top, strict=True):
            twin.observe([], [], [token], [top])
        for number, (source, row, column) in enumerate(
            (source, row, column) for source in ("store", "suffix") for row in range(6) for column in range(7)
        ):
            missed, tried = twin.escapes[source, row, column]
            trials[number] += tried - PRIOR
            hits[number] += missed - PRIOR * ESCAPES[source][row][column]
        for order in range(2):
            taken, tried = twin.ranks[order]
            for rank in range(8):
                trials[84 + order * 8 + rank] += tried - RANK_PRIOR
                hits[84 + order * 8 + rank] += taken[rank] - RANK_PRIOR * RANKS[order][rank]
        store.append(one.output)
    assert sum(count > 0 for count in trials) > 30
    assert found == pytest.approx([hit / trial if trial else 0 for hit, trial in zip(hits, trials, strict=True)])


def test_the_tables_of_the_core_and_of_its_oracle_are_the_same(prior: ModuleType) -> None:
    standing = [share for source in ("store", "suffix") for row in ESCAPES[source] for share in row]
    standing += [share for row in RANKS for share in row]
    source = prior.SOURCE.read_text(encoding="utf-8")
    assert prior.refitted(source, standing) == source == prior.refitted(source, [None] * NUMBERS)


def test_only_the_numbers_change(prior: ModuleType) -> None:
    source = prior.SOURCE.read_text(encoding="utf-8")
    changed = prior.refitted(source, [0.5, 0.0, *[None] * (NUMBERS - 3), 0.0])
    assert changed == source.replace("0.72, 0.43, 0.70", "0.50, 0.01, 0.70", 1).replace("0.005}};", "0.001}};", 1)
    with pytest.raises(ValueError, match="fewer than"):
        prior.refitted(source, [0.5] * (NUMBERS + 1))


def test_a_recording_is_read_and_the_file_is_written_on_demand(
    prior: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, file = tmp_path / "answers.jsonl", tmp_path / "predictor.cc"
    save(recording, Recording("a model", Calibration((1, 2), (0.01, 0.011)), [answer(1), answer(2)]))
    source = prior.SOURCE.read_text(encoding="utf-8")
    file.write_text(source)
    monkeypatch.setattr(prior, "SOURCE", file)
    shown = CliRunner().invoke(prior.main, [str(recording)])
    assert shown.exit_code == 0
    assert "from 2 answers, 48 tokens" in shown.output
    assert file.read_text() == source
    assert CliRunner().invoke(prior.main, ["--write", str(recording)]).exit_code == 0
    assert file.read_text() == prior.refitted(source, prior.shares([answer(1), answer(2)])) != source
