"""Spec-Bench's and SPEED-Bench's figures, by hand."""

from __future__ import annotations

import pytest

from ipex_lookahead.bench.layouts import LAYOUTS, figures
from ipex_lookahead.bench.modes import Generation, Mode
from ipex_lookahead.cli.prompts import Prompt
from ipex_lookahead.decoding.stats import GenerationStats


def answer(seconds: float, *accepted: int) -> Generation:
    """One token of the prompt's own step, then what each step has accepted and its own."""
    tokens = 1 + sum(accepted) + len(accepted)
    stats = GenerationStats(tokens=tokens, first_token_seconds=seconds / 2, decode_seconds=seconds / 2)
    stats.per_step = [(3, some, 0.0, 0.0) for some in accepted]
    return Generation(list(range(tokens)), stats)


WRITING, QA = Prompt("81", "writing", "w", later=("again",)), Prompt("9", "qa", "q")
ASKED = [WRITING, WRITING, QA]
PLAIN = Mode(0, [[answer(4.0, 0, 0, 0)], [answer(4.0, 0, 0, 0)], [answer(2.0, 0)]])
AHEAD = Mode(3, [[answer(1.0, 2)], [answer(1.0, 1, 0)], [answer(1.0, 0)]])


def test_spec_bench_means() -> None:
    plain, ahead = figures("spec-bench", [PLAIN, AHEAD], ASKED)
    assert list(ahead) == ["mt_bench", "qa", "overall"]
    assert ahead["mt_bench"] == {
        "mean_accepted_tokens": pytest.approx((3 + 2 + 1) / 3),
        "tok_s": pytest.approx(8 / 2.0),
        "baseline_tok_s": pytest.approx(8 / 8.0),
        "speedup": pytest.approx(4.0),
    }
    assert ahead["qa"]["speedup"] == pytest.approx(2.0)
    assert ahead["overall"]["speedup"] == pytest.approx((4.0 + 2.0) / (1.0 + 1.0)), "the ratio of two means"
    assert plain["overall"]["speedup"] == pytest.approx(1.0)
    said = "\n".join(LAYOUTS["spec-bench"]([plain, ahead], ["0", "3"]))
    assert said.startswith("lookahead 3\n")
    assert said.count("#Mean accepted tokens: ") == 3
    assert "Task:  mt_bench ===" in said


def test_speed_bench_lengths() -> None:
    plain, ahead = figures("speed-bench", [PLAIN, AHEAD], ASKED)
    assert ahead["Request_AL"] == {"81": pytest.approx(2.0), "9": pytest.approx(1.0)}
    assert ahead["Category_AL"] == {"qa": pytest.approx(1.0), "writing": pytest.approx(2.0)}
    assert ahead["Average_AL"] == pytest.approx(1.5)
    assert ahead["Acceptance_Length_Histogram"] == {1: 2, 2: 1, 3: 1}
    assert ahead["Conditional_Acceptance_Rate"] == {
        1: pytest.approx(1.0), 2: pytest.approx(2 / 4), 3: pytest.approx(1 / 2)
    }  # fmt: skip
    assert plain["Average_AL"] == pytest.approx(1.0)
    said = list(LAYOUTS["speed-bench"]([plain, ahead], ["0", "3"]))
    assert said[0] == "lookahead 3: Acceptance Rate Results"
    assert "Overall Average      1.5000" in said


def test_equal_ids_of_two_files_are_two_questions() -> None:
    asked = [Prompt("1", "qa", "a", "x"), Prompt("1", "qa", "b", "y")]
    mode = Mode(0, [[answer(1.0, 1)], [answer(1.0, 0)]])
    (found,) = figures("speed-bench", [mode], asked)
    assert found["Average_AL"] == pytest.approx(1.5)
