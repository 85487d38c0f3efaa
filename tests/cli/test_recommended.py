"""The recommended models as ``pull`` lists them, and the one to try."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ipex_lookahead.cli import recommended
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.recommended import expected_tok_s, suggestion, to_try
from ipex_lookahead.engines import bandwidth
from ipex_lookahead.errors import EngineError
from ipex_lookahead.hub.recommended import recommended_models

MODELS = [*recommended_models().values()]
GB = 10**9


@pytest.fixture
def machine(monkeypatch):
    def be(memory: int, rate: float | None, *, busy: bool = False) -> None:
        def kept():
            if rate is None:
                raise EngineError("there is no native core")
            return bandwidth.Bandwidth(rate, busy)

        monkeypatch.setattr(recommended, "machine_memory", lambda: memory)
        monkeypatch.setattr(bandwidth, "cached_bandwidth", kept)

    return be


def test_the_list(machine, monkeypatch, capsys):
    machine(16 * GB, 25e9)
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["pull"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    (line,) = [line.split() for line in out.splitlines() if line.startswith("qwen3-4b ")]
    assert line == ["qwen3-4b", "Apache-2.0", "5.0", "2.5", "3.4", "8", "yes", "qwen3-0.6b"]
    assert any(line.startswith("qwen3.8-27b") and line.endswith(" MTP head") for line in out.splitlines())
    assert "qwen3-30b-a3b * " in out
    words = " ".join(out.split())
    assert "this machine has 16.0 GB. *: does not fit. " in words
    assert "estimate without lookahead, 80% of the memory bandwidth of 25.0 GB/s." in words
    assert words.endswith(
        "try it: ipex-lookahead run gemma4-e2b (quick) try it: ipex-lookahead run lfm2.5-8b-a1b (best)"
    )
    assert run(["pull", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["models"]] == [model.name for model in MODELS]
    for one, model in zip(found["models"], MODELS, strict=True):
        assert (one["source"], one["confirmed"]) == (model.source, model.is_confirmed)
        assert (one["download_bytes"], one["read_bytes"], one["drafts"]) == (model.download, model.read, model.drafts)
    (one,) = [one for one in found["models"] if one["name"] == "qwen3-30b-a3b"]
    assert (one["fits"], one["draft_model"], one["thinks"]) == (False, None, True)
    assert one["estimated_tok_s"] == pytest.approx(0.8 * 25e9 / 1.92e9, abs=0.05)
    assert (found["try"], found["read_gb_s"], found["read_busy"]) == (["gemma4-e2b", "lfm2.5-8b-a1b"], 25.0, False)


def test_sizes_that_one_source_states_are_named(machine, monkeypatch, capsys):
    machine(16 * GB, 25e9)
    listed = dict(recommended_models())
    listed["gpt-oss-20b"] = replace(listed["gpt-oss-20b"], source="only in one list")
    monkeypatch.setattr(recommended, "recommended_models", lambda: listed)
    assert run(["pull"]) == 0
    assert "Sizes from one source only: gpt-oss-20b." in " ".join(capsys.readouterr().out.split())


def test_without_a_core_there_is_no_estimate(machine, capsys):
    machine(8 * GB, None)
    assert run(["pull"]) == 0
    out = capsys.readouterr().out
    assert "GB/s" not in out
    assert " -  " in out
    assert "tok/s" not in suggestion()


def test_an_estimate_on_a_busy_machine_says_so(machine, capsys):
    machine(16 * GB, 5e9, busy=True)
    assert run(["pull"]) == 0
    assert recommended.BUSY in " ".join(capsys.readouterr().out.split())
    assert suggestion().endswith(f"({recommended.BUSY})")


@pytest.mark.parametrize(
    ("memory", "rate", "names"),
    [
        (1 * GB, 20e9, ["smollm2-360m"]),  # none fits: the smallest
        (2 * GB, 20e9, ["llama3.2-1b"]),
        (8 * GB, 5e9, ["qwen3.5-0.8b"]),  # slow memory
        (10 * GB, 20e9, ["gemma4-e2b", "lfm2.5-8b-a1b"]),
        (7 * GB, 25e9, ["gemma4-e2b"]),
        (24 * GB, 25e9, ["gemma4-e2b", "gemma4-26b-a4b"]),
        (64 * GB, 200e9, ["gemma4-e2b", "qwen3.6-35b-a3b"]),
    ],
)
def test_the_suggested_models_fit_and_are_fast_enough(memory, rate, names):
    found = to_try(MODELS, memory, rate)
    assert [one.name for one in found] == names
    assert found[0].download < recommended.QUICK_BYTES
    for one in found:
        if one is not MODELS[0]:
            assert one.memory < memory
            assert expected_tok_s(one, rate) >= recommended.FLUENT * (1 + one.thinks)


def test_the_suggestion_has_commands(machine):
    machine(16 * GB, 25e9)
    assert suggestion().splitlines() == [
        "Larger models for this machine:",
        "  ipex-lookahead run gemma4-e2b  (3.3 GB, about 14 tok/s)",
        "  ipex-lookahead run lfm2.5-8b-a1b  (5.2 GB, about 19 tok/s)",
    ]
