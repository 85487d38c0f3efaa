"""``bench run``: what is timed is what was asked for, an interrupted run goes on, and the report tells it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ipex_lookahead.bench.plan import Plan, read_plan
from ipex_lookahead.bench.report import COLUMNS, as_csv, as_html
from ipex_lookahead.bench.run import cut, run_plan
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import EngineError, InputError
from ipex_lookahead.runtime.sampling_params import SamplingParams

TEXT = "one two three four five six seven eight nine ten eleven twelve. " * 40


class Words:
    """A tokenizer of letters."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*([1] if add_special_tokens else []), *(ord(letter) for letter in text)]


class Model:
    """Answers with 7s, slower for longer prompts; says what it was asked."""

    def __init__(self, wrong_with: int | None = None) -> None:
        self.tokenizer = Words()
        self.engine = SimpleNamespace(
            max_context=2048, describe=lambda: {"engine": "native", "isa": "scalar", "threads": 2, "low_bit": "q4_k"}
        )
        self.asked: list[tuple[Any, ...]] = []
        self.forgotten = 0
        self.wrong_with = wrong_with
        self.stats = GenerationStats()

    def forget(self) -> None:
        self.forgotten += 1

    def generate_batch(self, prompts: Any, params: SamplingParams, *, lookahead: Any, **settings: Any) -> Any:
        drafts, max_new_tokens = lookahead.num_draft_tokens if lookahead else 0, params.max_new_tokens
        rows, length = len(prompts), len(prompts[0])
        self.asked.append(((rows, length), drafts, params, settings))
        steps = (max_new_tokens - 1) // (2 if drafts else 1)
        self.stats = GenerationStats(
            tokens=max_new_tokens * rows, sequences=rows, sequence_steps=steps * rows,
            first_token_seconds=0.001 * length, decode_seconds=0.01 * steps,
        )  # fmt: skip
        new = [[7] * max_new_tokens for _ in range(rows)]
        if drafts and drafts == self.wrong_with:
            new[0][-1] = 8
        return new


def plan_of(folder: Path, **values: Any) -> Plan:
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump({"in_out_pairs": ["16-9", "64-9"], "lookahead": [0, 3]} | values), encoding="utf-8")
    return read_plan(file)


def test_all_modes_of_all_cases_are_timed_in_turn(tmp_path: Path) -> None:
    model, loads, counted = Model(), [], []

    def load(case: Any, plan: Plan) -> Model:
        loads.append(case.key)
        return model

    report = run_plan(plan_of(tmp_path), tmp_path / "out", load, TEXT, advance=counted.append)
    assert len(loads) == 1
    assert sum(counted) == 2 * 2 * (1 + 3) == len(model.asked) == model.forgotten
    assert {asked[2] for asked in model.asked} == {SamplingParams(9, ignore_eos=True)}
    assert [asked[:2] for asked in model.asked[:8]] == [
        ((1, 16), n)
        for n in (3, 0, 0, 3, 3, 0, 0, 3)  # the warm-up turned round, then in turn
    ]
    short, long = report["cases"]
    assert (short["tokens_in"], long["tokens_in"]) == (16, 64)
    plain, ahead = short["runs"]
    assert (plain["lookahead"], ahead["lookahead"]) == ("0", "3")
    assert plain["next_token_seconds"] == pytest.approx(0.01)
    assert (plain["speedup"], ahead["speedup"]) == (pytest.approx(1.0), pytest.approx(2.0))
    assert ahead["tokens_a_step"] == pytest.approx(2.0)
    assert (plain["tok_s"], ahead["identical"]) == (pytest.approx(100.0), True)
    assert long["runs"][0]["first_token_seconds"] == pytest.approx(0.064)
    assert [len(one["samples"]) for one in short["runs"]] == [3, 3]
    assert json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8")) == json.loads(json.dumps(report))


class Uneven(Model):
    """Each answer takes so much of its time; ``factors`` by what may be drafted, an answer each."""

    def __init__(self, factors: dict[int, list[float]]) -> None:
        super().__init__()
        self.factors = {drafts: iter(some) for drafts, some in factors.items()}

    def generate_batch(self, prompts: Any, params: SamplingParams, *, lookahead: Any, **settings: Any) -> Any:
        out = super().generate_batch(prompts, params, lookahead=lookahead, **settings)
        self.stats.decode_seconds *= next(self.factors[lookahead.num_draft_tokens if lookahead else 0])
        return out


TRIALS = {"in_out_pairs": ["16-129"], "warm_up": 0, "num_trials": 5}


def test_medians_stand_for_the_trials_and_their_spread_is_kept(tmp_path: Path) -> None:
    factors = {0: [1.0, 1.0, 1.0, 1.0, 9.0], 3: [1.0, 0.5, 1.0, 1.0, 4.0]}
    report = run_plan(plan_of(tmp_path, **TRIALS), tmp_path / "out", lambda case, plan: Uneven(factors), TEXT)
    (plain, ahead) = report["cases"][0]["runs"]
    assert plain["next_token_seconds"] == pytest.approx(0.01), "one slow answer of five does not count"
    assert plain["tok_s_range"] == [pytest.approx(100 / 9), pytest.approx(100)]
    assert ahead["tok_s_range"] == [pytest.approx(50), pytest.approx(400)]
    assert ahead["speedup"] == pytest.approx(2.0)
    assert (plain["ratio_is_noise"], ahead["ratio_is_noise"]) == (False, False)
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert [rows[1][name] for name in ("tok/s least", "tok/s most", "speedup", "noise")] == [
        "50.0",
        "400.0",
        "2.0",
        "False",
    ]
    assert "medians of 5 trials" in as_html(report, [])
    assert "(noise)" not in as_html(report, [])


@pytest.mark.parametrize(
    ("more", "factors"),
    [
        ({}, [2.0, 2.1, 1.5, 2.6, 1.8]),  # now slower, now quicker: it takes half the steps
        ({"num_trials": 3}, [1.0] * 3),
        ({"in_out_pairs": ["16-9"]}, [1.0] * 5),  # 40 tokens
    ],
    ids=["spread", "few trials", "few tokens"],
)
def test_noise_is_marked_as_bench_decode_marks_it(tmp_path: Path, more: dict[str, Any], factors: list[float]) -> None:
    made = {0: [1.0] * len(factors), 3: factors}
    report = run_plan(plan_of(tmp_path, **{**TRIALS, **more}), tmp_path / "out", lambda case, plan: Uneven(made), TEXT)
    plain, ahead = report["cases"][0]["runs"]
    assert (plain["ratio_is_noise"], ahead["ratio_is_noise"]) == (False, True)
    assert f'<td class="noise">~{ahead["speedup"]:.2f} (noise)</td>' in as_html(report, [])
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from ipex_lookahead.bench.plots.run import run_pictures

    title, svg = run_pictures(report)["lookahead"]
    assert "Hollow marks: noise." in title
    assert "fill: #ffffff; stroke: #1f5fa8" in svg


def test_results_of_an_earlier_version_are_summed_up_anew(tmp_path: Path) -> None:
    plan, out = plan_of(tmp_path, **TRIALS), tmp_path / "out"
    fresh = run_plan(plan, out, lambda case, plan: Model(), TEXT)
    kept = json.loads((out / "results.json").read_text(encoding="utf-8"))
    for one in kept["cases"][0]["runs"]:
        for name in ("tok_s_range", "ratio_is_noise", "ratio_quartiles", "first_token_seconds_range"):
            del one[name]
        one["speedup"] = 99.0
    (out / "results.json").write_text(json.dumps(kept), encoding="utf-8")
    assert run_plan(plan, out, lambda case, plan: pytest.fail("all is there"), TEXT)["cases"] == fresh["cases"]


def test_differing_tokens_are_seen(tmp_path: Path) -> None:
    report = run_plan(plan_of(tmp_path), tmp_path, lambda case, plan: Model(wrong_with=3), TEXT)
    assert [one["identical"] for one in report["cases"][0]["runs"]] == [True, False]
    assert as_html(report, []).count('<td class="bad">NO</td>') == 2
    assert as_html(report, []).count("<td>yes</td>") == 2


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    plan, out = plan_of(tmp_path), tmp_path / "out"
    calls = 0

    class Stopped(Model):
        def generate_batch(self, prompts: Any, params: SamplingParams, **settings: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 11:
                raise KeyboardInterrupt
            return super().generate_batch(prompts, params, **settings)

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, out, lambda case, plan: Stopped(), TEXT)
    kept = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert [case["tokens_in"] for case in kept["cases"]] == [16]
    model, counted = Model(), []
    report = run_plan(plan, out, lambda case, plan: model, TEXT, advance=counted.append)
    assert {asked[0] for asked in model.asked} == {(1, 64)}
    assert sum(counted) == plan.answers
    assert report["cases"][0] == kept["cases"][0]
    assert [case["tokens_in"] for case in report["cases"]] == [16, 64]


def test_what_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    def refuse(case: Any, plan: Plan) -> Model:
        raise EngineError("no such device")

    plan, out = plan_of(tmp_path), tmp_path / "out"
    report = run_plan(plan, out, refuse, TEXT)
    assert [case["error"] for case in report["cases"]] == ["no such device"] * 2
    assert "no such device" in as_html(report, [])
    assert as_csv(report).count("\n") == 1
    report = run_plan(plan, out, lambda case, plan: Model(), TEXT)
    assert not any("error" in case for case in report["cases"])


def test_a_prompt_that_does_not_fit_is_an_error_of_its_case(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, in_out_pairs=["2045-9", "16-9"])
    report = run_plan(plan, tmp_path / "out", lambda case, plan: Model(), TEXT)
    assert "exceed the model's context of 2048" in report["cases"][0]["error"]
    assert "runs" in report["cases"][1]


@pytest.mark.parametrize("changed", [{"num_trials": 5}, {"warm_up": 0}, {"task": "QA"}])
def test_results_of_another_plan_are_not_mixed_in(tmp_path: Path, changed: dict[str, Any]) -> None:
    out = tmp_path / "out"
    run_plan(plan_of(tmp_path), out, lambda case, plan: Model(), TEXT)
    with pytest.raises(InputError, match=next(iter(changed))):
        run_plan(plan_of(tmp_path, **changed), out, lambda case, plan: Model(), TEXT)
    more = plan_of(tmp_path, in_out_pairs=["16-9", "64-9", "32-9"])
    model = Model()
    run_plan(more, out, lambda case, plan: model, TEXT)
    assert {asked[0] for asked in model.asked} == {(1, 32)}  # more cases are no other plan


def test_a_file_that_is_no_result_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="not a file of `bench run`"):
        run_plan(plan_of(tmp_path), tmp_path, lambda case, plan: Model(), TEXT)
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == "{}"


def test_prompts_have_exactly_so_many_tokens() -> None:
    rows, repeats = cut(Words(), "Do: ", "abcdefghij", 8, 2)
    assert [len(row) for row in rows] == [8, 8]
    assert rows[0][:5] == rows[1][:5] == [1, *map(ord, "Do: ")]
    assert rows[0][5:] + rows[1][5:] == [*map(ord, "abcdef")]
    assert not repeats
    rows, repeats = cut(Words(), "", "abc", 9, 1)
    assert rows == [[1, *map(ord, "abcabcab")]]
    assert repeats
    assert cut(Words(), "long task", "abc", 3, 1)[0] == [[1, *map(ord, "lo")]]
    with pytest.raises(InputError, match="no token"):
        cut(Words(), "", "", 9, 1)


def test_the_table_has_the_columns_that_sheets_know(tmp_path: Path) -> None:
    report = run_plan(plan_of(tmp_path, batch_size=2), tmp_path / "out", lambda case, plan: Model(), TEXT)
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["lookahead"] for row in rows] == ["0", "3", "0", "3"]
    assert rows[0]["1st token avg latency (ms)"] == "16.0"
    assert rows[0]["2+ avg latency (ms/token)"] == "10.0"
    assert rows[0]["input/output tokens"] == rows[0]["actual input/output tokens"] == "16-9"
    assert (rows[0]["batch_size"], rows[0]["low_bit"], rows[0]["tok/s"]) == ("2", "q4_k", "200.0")


def test_the_page_stands_alone_and_escapes_what_it_is_given(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, repo_id="<script>alert(1)</script>")
    report = run_plan(plan, tmp_path / "out", lambda case, plan: Model(), TEXT)
    page = as_html(report, [("Speed & more", "<svg></svg>")])
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "Speed &amp; more" in page
    assert "q4_k · 16-9 tokens in and out · native engine · 2 threads" in page
    assert page.count('class="case"') == 2
    assert not re.search(r"(?:src|href)\s*=|url\(|@import", page)
    assert "processor" in page


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from ipex_lookahead.bench.plots.run import run_pictures

    plan = plan_of(tmp_path, low_bit=["q4_k", "sym_int4"])
    report = run_plan(plan, tmp_path / "out", lambda case, plan: Model(), TEXT)
    pictures = run_pictures(report)
    assert [*pictures] == ["lookahead", "context"]
    for _, svg in pictures.values():
        assert svg.startswith("<svg")
        assert svg.rstrip().endswith("</svg>")
    assert "16 in, 9 out" in pictures["lookahead"][1]
    plan = plan_of(tmp_path, lookahead=0, in_out_pairs="8-8")
    one = run_plan(plan, tmp_path / "one", lambda case, plan: Model(), TEXT)
    assert run_pictures(one) == {}
