"""``bench decode`` as a command: what it prints, and that a difference is an error."""

from __future__ import annotations

import json

import pytest

from ipex_lookahead.cli.main import run
from ipex_lookahead.config import LookaheadConfig


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"id": "a", "prompt": "hello"}\n{"id": "b", "prompt": "good day"}\n')
    return str(file)


def test_json_is_the_last_line_and_has_the_fields(scripted, prompts, capsys):
    model = scripted("a fine day")
    assert run(["bench", "decode", "--prompts", prompts, "--lookahead", "3", "--max-new-tokens", "8", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out.splitlines()[-1])
    assert {"model", "low_bit", "isa", "threads", "runs"} <= set(report)
    assert [r["lookahead"] for r in report["runs"]] == [0, 3]
    fields = "lookahead prompts tokens decode_tok_s prefill_tok_s ttft_ms mean_acceptance_length acceptance_rate"
    fields += " identical_to_plain slowest_prompt_ratio python_us_per_step strategy adaptive acceptance_by_source"
    fields += " drafted_by_position accepted_by_position mean_prompt_ratio prompt_ratios by_file"
    fields += " memory memory_gain by_category prompt_acceptance_lengths cpu_ms_per_token cpu_ratio"
    fields += " ratio_quartiles ratio_is_noise proposer_ms_per_step engine_ms_per_step sampler_ms_per_step"
    for found in report["runs"]:
        assert set(found) == set(fields.split())
        assert found["identical_to_plain"] == "2/2"
        assert found["tokens"] == 16
    assert "lookahead" in err, "the table for people is there too"
    assert len(model.asked) == 2 + 4


def test_a_difference_is_an_error(scripted, prompts, capsys):
    scripted("warm", "up", "the same", "another", "the same", "the same")
    assert run(["bench", "decode", "--prompts", prompts, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["runs"][1]["identical_to_plain"] == "1/2"
    assert "error: with lookahead 3 prompt_lookup the tokens differ" in err


def test_sampling_has_a_seed(scripted, prompts):
    model = scripted()
    assert run(["bench", "decode", "--prompts", prompts, "--temperature", "0.8"]) == 0
    assert {(s["temperature"], s["seed"]) for _, s in model.asked} == {(0.8, 0)}


def settings(model) -> list:
    return list(dict.fromkeys(s["lookahead"] for _, s in model.asked))


def test_strategies_are_modes(scripted, prompts, capsys):
    model = scripted()
    arguments = ["bench", "decode", "--prompts", prompts, "--json"]
    assert run([*arguments, "--strategy", "auto", "--strategy", "prompt_lookup", "--store", "s"]) == 0
    assert settings(model) == [0, LookaheadConfig("auto", 32, store="s"), LookaheadConfig("prompt_lookup", 32)]
    runs = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert [r["strategy"] for r in runs] == [None, "auto", "prompt_lookup"]
    assert [len(r["prompt_ratios"]) for r in runs] == [2, 2, 2]
    assert set(runs[1]["by_file"]) == {"p"}
    model = scripted()
    assert run([*arguments, "--lookahead", "auto", "--lookahead", "5", "--no-adaptive"]) == 0
    cold, warm, five = settings(model)[1:]
    assert [(one.num_draft_tokens, one.adaptive, one.store) for one in (cold, warm)] == [
        (32, False, "none"), (32, False, "memory:2")
    ]  # fmt: skip
    assert five == LookaheadConfig(num_draft_tokens=5, adaptive=False)
    model = scripted()
    assert run([*arguments, "--lookahead", "auto", "--lookahead", "2"]) == 0
    assert settings(model) == [
        0, LookaheadConfig("auto", 32, store="none"), LookaheadConfig("auto", 32, store="memory:2"), 2
    ]  # fmt: skip


def test_auto_is_shown_cold_and_warm_with_what_the_memory_brought(scripted, prompts, capsys):
    scripted()
    assert run(["bench", "decode", "--prompts", prompts, "--lookahead", "auto"]) == 0
    out, _ = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("auto")][:2] == [
        ["auto", "cold"], ["auto", "warm"]
    ]  # fmt: skip
    assert "a gain of ~1.00x (noise) auto" in " ".join(out.split())


def test_later_turns_follow_the_model_s_own_answers(scripted, tmp_path, capsys):
    file = tmp_path / "question.jsonl"
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["one", "two"]},
        {"question_id": 82, "category": "qa", "turns": ["three"]},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = scripted("a fine day")
    arguments = ["bench", "decode", "--prompts", str(file), "--layout", "spec-bench", "--json"]
    assert run(arguments) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["prompts"] == ["81", "81", "82"]
    assert report["categories"] == ["writing", "writing", "qa"]
    second = next(text for text in (model.tokenizer.decode(ids) for ids, _ in model.asked) if "two" in text)
    assert second.index("one") < second.index("a fine day") < second.index("two")
    assert [list(tasks) for tasks in report["layout"]] == [["mt_bench", "qa", "overall"]] * 2


def test_plots_are_refused_before_anything_is_loaded(scripted, prompts, capsys):
    model = scripted()
    assert run(["bench", "decode", "--prompts", prompts, "--plot", "a.gif"]) == 1
    assert ".svg or .png" in capsys.readouterr().err
    assert model.asked == []


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("there.jsonl", [], "--show-drafts: {} already exists"),
        ("none/a.jsonl", [], "--show-drafts: {} cannot be written: no folder"),
        ("", [], "--show-drafts: {} is not a file"),
        ("new.jsonl", ["--lookahead", "0"], "--show-drafts has no effect with --lookahead 0"),
    ],
)
def test_a_file_for_drafts_is_refused_before_anything_is_loaded(name, more, says, scripted, prompts, tmp_path, capsys):
    model = scripted()
    (tmp_path / "there.jsonl").write_text("mine")
    file = str(tmp_path / name)
    assert run(["bench", "decode", "--prompts", prompts, "--show-drafts", file, *more]) == 2
    assert says.format(file) in capsys.readouterr().err
    assert model.asked == []
    assert (tmp_path / "there.jsonl").read_text() == "mine"
    assert not (tmp_path / "new.jsonl").exists()


def test_drafts_are_asked_for_only_to_be_shown(scripted, prompts, tmp_path):
    model = scripted()
    assert run(["bench", "decode", "--prompts", prompts]) == 0
    assert not any("keep_drafts" in settings for _, settings in model.asked)
    model = scripted()
    assert run(["bench", "decode", "--prompts", prompts, "--show-drafts", str(tmp_path / "new.jsonl")]) == 0
    assert all(settings["keep_drafts"] for _, settings in model.asked)
    assert (tmp_path / "new.jsonl").exists()
