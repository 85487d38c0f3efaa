"""What a head would bring: tokens by given rates, costs on random weights of a tiny shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.bench import drafters, head
from ipex_lookahead.bench.drafters import drafter_of
from ipex_lookahead.bench.head import layers_that_fit, measure_head, period, tokens_a_step
from ipex_lookahead.bench.replay_head import load_costs
from ipex_lookahead.bench.routing import trace_experts
from ipex_lookahead.bench.shapes import config_of, shape_of
from ipex_lookahead.cli.main import run
from ipex_lookahead.engines.api import PhaseTime, StepOutput
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.errors import InputError

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 40000, "head_dim": 16}  # fmt: skip
TINY = {
    "llama-3.1-8b": {**SIZES, "num_hidden_layers": 8},
    "gpt-oss-20b": {**SIZES, "num_hidden_layers": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3.5-4b": {**SIZES, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
                   "linear_value_head_dim": 16, "num_hidden_layers": 8},
    "gemma4-26b-a4b": {**SIZES, "global_head_dim": 32, "num_global_key_value_heads": 1, "num_experts": 4,
                       "top_k_experts": 2, "moe_intermediate_size": 32, "num_hidden_layers": 12},
}  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(name: str, layers: int | None = None) -> dict[str, Any]:
        if name not in TINY:
            return config_of(name, layers)
        layers = layers or TINY[name]["num_hidden_layers"]
        return {**config_of(name, layers), **TINY[name], "num_hidden_layers": layers}

    monkeypatch.setattr(drafters, "config_of", small)
    for name in ("llama-3.1-8b", "gpt-oss-20b"):
        monkeypatch.setitem(drafters.EAGLE3, name, (96, 4, 2, 16))
    monkeypatch.setitem(drafters.ASSISTANTS, "gemma4-26b-a4b", (32, 64))


def test_tokens_follow_from_the_rates() -> None:
    assert tokens_a_step([0.5, 0.5, 0.2]) == [1.5, 1.75, 1.8]
    assert tokens_a_step([1, 1]) == [2, 3]
    assert tokens_a_step([0, 1]) == [1, 1]


@pytest.mark.parametrize(
    ("shape", "kind"), [(one, kind) for one, kind in zip(TINY, ("EAGLE-3", "EAGLE-3", "MTP", "assistant"), strict=True)]
)
def test_each_number_of_tokens_is_a_row(shape: str, kind: str) -> None:
    found = measure_head(shape, [0.8, 0.5], threads=1, repeat=2, context=8)
    assert (found["kind"], found["layers"], found["measured_layers"]) == (kind, *[TINY[shape]["num_hidden_layers"]] * 2)
    assert [(row["drafted"], row["tokens"]) for row in found["rows"]] == [(1, 1.8), (2, pytest.approx(2.2))]
    for row in found["rows"]:
        for name in ("cut", "full"):
            speed = row["tokens"] * row["one_row_ms"] / (row["step_ms"] + row[f"{name}_ms"])
            assert row[f"{name}_speed"] == pytest.approx(speed)
    assert {name: one["words"] for name, one in found["costs"]["heads"].items()} == {"full": 40000, "cut": 32768}
    assert found["costs"]["rows"] == [1, 2, 3, 8, 12, 16]
    assert found["costs"]["seconds"][0] == pytest.approx(found["rows"][0]["one_row_ms"] / 1e3)


def test_what_layers_take_counts_as_often_as_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [("embedding", 1.0), ("qkv", 10.0), ("head", 2.0), ("down", 30.0)]

    def forward(engine: NativeEngine, batch: Any) -> StepOutput:
        timings = [PhaseTime(name, 1, seconds, seconds, 0) for name, seconds in parts]
        return StepOutput(np.zeros(1, np.int32), None, timings=timings if batch.wants.timings else None)

    monkeypatch.setattr(NativeEngine, "forward", forward)
    monkeypatch.setattr(head._Bench, "draft", lambda *way: 5.0)
    found = measure_head("llama-3.1-8b", [0.5], layers=4, threads=1, repeat=1)
    assert (found["layers"], found["measured_layers"]) == (8, 4)
    assert found["rows"][0]["one_row_ms"] == pytest.approx(40e3, rel=1e-2), "4 more layers, and no more of the rest"


def test_rows_of_a_mixture_need_the_experts_of_a_trace() -> None:
    _, _, target = drafter_of("gpt-oss-20b")
    bench = head._Bench(NativeEngine.random(target, "sym_int4", threads=1), {}, 8, 1.0)
    bench._alone, bench._experts = 1.0, {1: 8 * 2, 2: 8 * 2}
    facts = bench._engine.describe()
    assert bench.more_experts(1) == 0
    expected = trace_experts(bench._engine.spec, 2)
    assert 8 * 2 < expected < 8 * 3, "2 unrelated rows of 2 of 4 experts need 4 * (1 - 1 / 4) = 3"
    assert bench.more_experts(2) == (expected - 8 * 2) * facts["expert_bytes"] / facts["step_bytes"]


def test_whole_periods_of_layers_fit_into_the_memory() -> None:
    assert [period(shape_of(one)) for one in ("llama-3.1-8b", "gpt-oss-20b", "qwen3.5-9b", "gemma4-26b-a4b")] == [
        1,
        2,
        4,
        6,
    ]
    assert period(shape_of("deepseek-v2-lite")) == 27, "its first layer has no experts"
    spec = shape_of("gemma4-26b-a4b")
    bits = 25.2e9 * 4.5
    assert layers_that_fit(spec, "sym_int4", int(1.1 * bits / 8)) == 30
    assert layers_that_fit(spec, "sym_int4", int(0.5 * bits / 8)) == 12
    assert layers_that_fit(spec, "sym_int4", 1) == 6
    assert layers_that_fit(shape_of("llama-3.1-8b"), "sym_int4", 1) == 4
    with pytest.raises(InputError, match="a multiple of 6 from 4 to 12"):
        measure_head("gemma4-26b-a4b", [0.5], layers=8)


def test_heads_are_as_large_as_the_published_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def own(shape: str) -> float:
        _, spec, _ = drafter_of(shape)
        shared = {"embedding": spec.embedding, "head": spec.head_weight}
        weights = [one for one in spec.tensors() if all(one is not shared[part] for part in spec.features.shares)]
        return sum(float(np.prod(one.shape)) for one in weights) / 1e6

    # SpecForge's head for Llama 3.1 8B has 425 M weights with 32,000 words, google/gemma-4-26B-A4B-it-assistant 0.4 B.
    assert own("llama-3.1-8b") - (128256 - 32000) * 4096 / 1e6 == pytest.approx(425, rel=0.01)
    assert own("gemma4-26b-a4b") == pytest.approx(420, rel=0.01)


@pytest.mark.parametrize("rates", [[], [1.2], [-0.1, 0.5]])
def test_rates_are_from_0_to_1(rates: list[float]) -> None:
    with pytest.raises(InputError, match="rates from 0 to 1"):
        measure_head("qwen3.5-4b", rates)


def test_a_shape_without_a_head_is_refused() -> None:
    with pytest.raises(InputError, match="llama2-7b has no block for drafting"):
        measure_head("llama2-7b", [0.5])


def test_the_command_prints_it(capsys: Any, tmp_path: Path) -> None:
    step = "bench step --shape qwen3.5-4b --repeat 1 --context 8 --threads 1 --layers 4".split()
    assert run([*step, "--acceptance", "0.8,0.5", "--json"]) == 0
    said = capsys.readouterr()
    text = " ".join(said.err.split())
    assert "MTP in sym_int8, right 0.8, 0.5" in text
    assert "scaled from 4 layers to 8" in text
    (tmp_path / "costs").write_text(said.out)
    costs, report = load_costs(tmp_path / "costs"), json.loads(said.out.splitlines()[-1])
    assert (costs.shape, [one.words for one in costs.heads]) == ("qwen3.5-4b", [40000, 32768])
    assert costs.curve.seconds[0] == pytest.approx(report["drafting"]["rows"][0]["one_row_ms"] / 1e3)
    assert run([*step, "--acceptance", "0.8,2"]) == 2
    assert "must be rates from 0 to 1" in capsys.readouterr().err
    assert run([*step, "--acceptance", "0.8", "--plot", "x.svg"]) == 2
    assert "leave it out with --acceptance" in capsys.readouterr().err
