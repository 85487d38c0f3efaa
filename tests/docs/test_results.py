"""The tables of README and docs are what the committed result files give."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gguf import GGUFReader

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results() -> Any:
    spec = importlib.util.spec_from_file_location("results", ROOT / "scripts" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_what_the_results_give(results: Any) -> None:
    for page in results.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert results.rendered(text) == text, f"{page}: python scripts/results.py writes its tables"
        for _, name, lines, _ in results.BLOCK.findall(text):
            assert lines.count("\n|") >= 2, f"{page}: the table {name} is empty"
    assert {"lookahead", "families"} <= {name for _, name in results.named_tables()}


def test_every_result_has_its_table_and_what_it_was_measured_on(results: Any) -> None:
    shown = {name for _, name in results.named_tables()}
    for file in (ROOT / "docs" / "results").glob("*.json"):
        if file.stem not in ("formats", "ocloc"):  # scripts/formats_table.py and opencl_offline.py have those
            assert file.stem in results.TABLES, file.name
            assert file.stem in shown, file.name
            assert {"version", "date", "machine"} <= set(json.loads(file.read_text(encoding="utf-8")))
    assert set(results.MEASURES) == {results.SOURCES.get(name, name) for name in results.TABLES}


def test_a_table_without_results_is_an_error(results: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    page = "a\n<!-- table: families -->\nold\n<!-- end -->\nb"
    with pytest.raises(results.click.ClickException, match="--measure families"):
        results.rendered(page)
    report = {"version": "1", "date": "2026-01-01", "machine": {"processor": "P", "isa": "avx2", "threads": 2}}
    steps = [{"rows": rows, "ms": ms, "gb_s": 8.0} for rows, ms in ((1, 10.0), (4, 12.0), (128, 640.0))]
    shape = {"shape": "s", "runs": [{"bandwidth_gb_s": 10.0, "steps": steps}], "llama_cpp": [{"pp": 100, "tg": 50}]}
    (tmp_path / "families.json").write_text(json.dumps({**report, "shapes": [shape]}), encoding="utf-8")
    lines = results.rendered(page).splitlines()
    assert (lines[0], lines[-2:]) == ("a", ["<!-- end -->", "b"])
    assert lines[4] == "| `s` | 100 tok/s | 80 % | 1.20 | 200 tok/s | 50 / 100 tok/s | 2.0 / 2.0 x |"
    assert lines[6] == "P, avx2, 2 threads; ipex-lookahead 1, 2026-01-01."


def answers(lookahead: Any, strategy: str | None, memory: str | None, ratio: float) -> dict[str, Any]:
    part = {"mean_prompt_ratio": ratio, "mean_acceptance_length": 1.5}
    groups = {"by_file": {"f": part}, "by_category": {"chat": part, "code": part}}
    mean = {"mean_prompt_ratio": ratio, "prompt_ratios": [1.5, 0.97], "ratio_is_noise": False}
    facts = {"prompts": 2, "decode_tok_s": 100 * ratio, "identical_to_plain": "2/2"}
    gain = 1.1 if memory == "warm" else None
    return {
        "lookahead": lookahead,
        "strategy": strategy,
        "memory": memory,
        "memory_gain": gain,
        **groups,
        **mean,
        **facts,
    }


def test_lookahead_is_shown_cold_and_warm_by_category(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [answers(0, None, None, 1.0), answers(3, "prompt_lookup", None, 1.2)]
    runs += [answers("auto", "auto", "cold", 1.4), answers("auto", "auto", "warm", 1.6)]
    machine = {"processor": "P", "isa": "avx2", "threads": 2}
    report = {"runs": runs, "max_new_tokens": 64, "model": "default", "machine": machine, "version": "1", "date": "d"}
    asked: list[str] = []
    monkeypatch.setattr(results, "run", lambda *arguments: asked.extend(arguments) or report)
    said = CliRunner().invoke(results.main, ["--here"], catch_exceptions=False)
    lines = said.stdout.splitlines()
    assert "ten prompts that come with the package" in said.stderr
    assert "--prompts" not in asked
    on_theirs = CliRunner().invoke(results.main, ["--here", "--prompts", "folder"], catch_exceptions=False)
    assert (on_theirs.stdout, on_theirs.stderr) == (said.stdout, "")
    assert asked[-4:] == ["--prompts", "folder", "--limit", "10"]
    assert CliRunner().invoke(results.main, ["--here", "--measure", "lookahead"]).exit_code == 2
    assert lines[0] == "| 2 prompts, 64 tokens | tok/s | chat | code | mean | slowest prompt | same tokens |"
    assert lines[2] == "| without | 100 |  |  | 1.00 x |  | 2 of 2 |"
    assert lines[3] == "| `lookahead=3` | 120 | 1.20 x, 1.50 | 1.20 x, 1.50 | 1.20 x | 0.97 x, next 1.50 x | 2 of 2 |"
    assert [line.split(" |")[0] for line in lines[4:6]] == [
        '| `lookahead="auto"`, cold', '| `lookahead="auto"`, warm'
    ]  # fmt: skip
    assert "1.10 x the cold speed" in lines[7]


MACHINE = {"version": "1", "date": "d", "machine": {"processor": "P", "isa": "avx2", "threads": 2}}


def test_strategies_have_their_names(results: Any) -> None:
    runs = [answers(0, None, None, 1.0), answers(32, "suffix", None, 1.2), answers(120, "jacobi", None, 0.9)]
    lines = results.lookahead_table({**MACHINE, "runs": runs, "max_new_tokens": 64, "model": "m"})
    assert [line.split(" |")[0] for line in lines[3:5]] == ["| `suffix`", "| `jacobi`"]


def test_programs_and_engines_are_shown_with_what_stays_equal(results: Any) -> None:
    row = {"peer": "x", "version": "7", "mode": "lookahead", "decode_tok_s": 50.2, "ratio": 1.1, "prefill_tok_s": 99.9}
    row |= {"identical_to_plain": "1/3", "weights": "w", "lookup": "l"}
    report = {**MACHINE, "rows": [row], "absent": {"y": "why"}, "prompts": 3, "max_new_tokens": 9, "low_bit": "q"}
    lines = results.compare_table(report)
    assert lines[2] == "| x 7 | lookahead | 50 tok/s | 1.10 x | 100 tok/s | 1 of 3 |"
    assert lines[4].startswith("3 prompts, 9 tokens. x: w, l. P, avx2, 2 threads")
    assert lines[4].endswith("Not measured: y.")
    report["rows"] = [{"engine": "native", "mode": "plain", "tok_s": 5.04, "ratio": 1.0, "identical_to_plain": "3/3"}]
    assert results.engines_table(report)[2] == "| native | plain | 5.0 tok/s | 1.00 x | 3 of 3 |"


def test_paths_do_not_get_into_results(results: Any) -> None:
    found = results.without_paths({"a": "/home/me/models/x.gguf", "b": ["/bin/python"], "c": "1/2", "d": "a / b"})
    assert found == {"a": "x.gguf", "b": ["python"], "c": "1/2", "d": "a / b"}


def test_each_shape_is_measured_in_turn_with_llama_cpp(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real writer of files, and a program that says what llama-bench says of them."""
    asked: list[str] = []

    def run(*arguments: str) -> dict[str, Any]:
        asked.append("ours")
        return {"bandwidth_gb_s": 10.0, "steps": [{"rows": 1, "ms": 10.0, "gb_s": 8.0}], "threads": 2, "model": "x"}

    def llama_bench(program: str, file: Path, threads: int) -> dict[str, float]:
        asked.append("theirs")
        found = GGUFReader(file)
        assert {tensor.tensor_type.name for tensor in found.tensors} == {"F32", "Q4_0", "Q8_0"}
        assert found.fields["llama.block_count"].contents() == 30
        return {"pp": 100.0, "tg": 50.0}

    monkeypatch.setattr(results, "run", run)
    monkeypatch.setattr(results, "llama_cpp_speeds", llama_bench)
    found = results.measure_shape("smollm2-135m", "llama-bench")
    assert asked == ["ours", "ours", "theirs"] * 2
    assert found["llama_cpp"] == [{"pp": 100.0, "tg": 50.0}] * 2
    assert "llama_cpp" not in results.measure_shape("gpt-oss-20b", "llama-bench")


def scores(program: str, *rows: tuple[str, str, str]) -> dict[str, Any]:
    parts = [{"mode": mode, "drafts": mode, "greedy": greedy, "sampled": sampled} for mode, greedy, sampled in rows]
    return {"program": program, "version": "7", "weights": "w", "rows": parts}


def scoreboard(*programs: dict[str, Any], **parts: Any) -> dict[str, Any]:
    settings = {"model": "default", "threads": 2, "prompts": 3, "max_new_tokens": 9, "lookahead": 3, "sampled": 1}
    return {**MACHINE, **settings, "load": [], "absent": {}, "programs": [*programs], **parts}


def test_the_scoreboard_shows_what_stays_the_same_alone_and_under_load(results: Any) -> None:
    load = [{"program": "ours", "streams": count, "same": f"{count}/9", "tok_s": 99.6} for count in (1, 8)]
    ours = scores("ours", ("plain", "3/3", "1/1"), ("lookahead", "3/3", "0/1"), ("auto", "2/3", "1/1"))
    other = scores("x", ("plain", "2/3", "1/1"), ("lookahead", "1/3", "0/1"))
    report = scoreboard(ours, other, scores("y", ("plain", "2/3", "1/1")), load=load, absent={"y": "why"})
    lines = results.scoreboard_table(report)
    assert lines[0] == "| program | greedy | sampled | control: no lookup, run twice | 8 requests at a time |"
    assert lines[2:5] == [
        "| ours 7 | 3 of 3 | 0 of 1 | 3 of 3; 1 of 1 | 8 of 9, 100 tok/s |",
        "| x 7 | 1 of 3 | 0 of 1 | 2 of 3; 1 of 1 |  |",
        "",
    ]
    assert lines[5].startswith("3 prompts, 9 tokens, each program's own lookup of 3 tokens. P, avx2, 2 threads")
    assert lines[5].endswith("Not measured: y.")


def test_every_kind_of_speculation_has_a_line(results: Any) -> None:
    mtp = {"programs": [scores("ours", ("plain", "2/2", "1/1"), ("MTP", "2/2", "0/1"))]}
    ours = scores("ours", ("plain", "3/3", "1/1"), ("lookahead", "3/3", "1/1"))
    lines = results.speculation_table(scoreboard(ours, mtp={**mtp, "prompts": 2, "max_new_tokens": 5}))
    assert lines[2:5] == [
        "| ours 7 | its lookup: lookahead | 3 of 3 | 1 of 1 |",
        "| ours 7 | MTP: MTP | 2 of 2 | 0 of 1 |",
        "",
    ]
    assert "MTP: 2 prompts, 5 tokens, a model with random weights." in lines[5]


def test_one_program_of_the_scoreboard_is_measured_again(results: Any) -> None:
    old = scoreboard(scores("ours"), scores("x"), load=[1], absent={"z": "why", "y": "why"})
    new = scoreboard(scores("x", ("plain", "3/3", "1/1")), scores("y"))
    found = results.merged(old, new)
    assert [(entry["program"], len(entry["rows"])) for entry in found["programs"]] == [("ours", 0), ("x", 1), ("y", 0)]
    assert (found["load"], found["mtp"], found["absent"]) == ([1], None, {"z": "why"})
    assert results.merged(old, {"mtp": {"programs": []}})["programs"] == old["programs"]
    with pytest.raises(results.click.ClickException, match="another prompts"):
        results.merged(old, {**new, "prompts": 4})
