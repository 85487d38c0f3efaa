"""The recommended models as ``pull`` lists them, and the one to try."""

from __future__ import annotations

import json

import pytest

from ipex_lookahead.cli import recommended
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.recommended import expected_tok_s, one_to_try, suggestion
from ipex_lookahead.engines import bandwidth
from ipex_lookahead.errors import EngineError
from ipex_lookahead.hub.recommended import recommended_models

MODELS = [*recommended_models().values()]
GB = 10**9


@pytest.fixture
def machine(monkeypatch):
    def be(memory: int, rate: float | None) -> None:
        def kept():
            if rate is None:
                raise EngineError("there is no native core")
            return rate

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
    assert "qwen3-30b-a3b (too big)" in out
    words = " ".join(out.split())
    assert "estimated without lookahead, from 80% of the 25.0 GB/s at which memory is read here" in words
    assert "To try here: ipex-lookahead run gemma4-e4b" in words
    assert run(["pull", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["models"]] == [model.name for model in MODELS]
    (one,) = [one for one in found["models"] if one["name"] == "qwen3-30b-a3b"]
    assert (one["fits"], one["draft_model"], one["thinks"]) == (False, None, True)
    assert one["estimated_tok_s"] == pytest.approx(0.8 * 25e9 / 1.92e9, abs=0.05)
    assert (found["try"], found["read_gb_s"]) == ("gemma4-e4b", 25.0)


def test_without_a_core_there_is_no_estimate(machine, capsys):
    machine(8 * GB, None)
    assert run(["pull"]) == 0
    out = capsys.readouterr().out
    assert "GB/s" not in out
    assert " -  " in out
    assert "tok/s" not in suggestion()


@pytest.mark.parametrize(
    ("memory", "rate", "name"),
    [
        (1 * GB, 20e9, "smollm2-360m"),  # none fits: the smallest
        (2 * GB, 20e9, "llama3.2-1b"),
        (8 * GB, 5e9, "smollm2-360m"),  # slow memory
        (16 * GB, 20e9, "gemma4-e2b"),
        (16 * GB, 25e9, "gemma4-e4b"),
        (24 * GB, 25e9, "gemma4-26b-a4b"),
        (64 * GB, 25e9, "gemma4-26b-a4b"),
        (64 * GB, 200e9, "qwen3.5-35b-a3b"),
    ],
)
def test_the_one_to_try_fits_and_is_fluent(memory, rate, name):
    found = one_to_try(MODELS, memory, rate)
    assert found.name == name
    if found is not MODELS[0]:
        assert found.memory < memory
        assert expected_tok_s(found, rate) >= recommended.FLUENT * (1 + found.thinks)


def test_the_suggestion_is_a_command(machine):
    machine(16 * GB, 25e9)
    assert suggestion() == (
        "a larger model that suits this machine (5.2 GB to fetch, 5.7 GB of memory, about 7 tok/s): "
        "ipex-lookahead run gemma4-e4b"
    )
