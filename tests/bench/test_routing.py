"""Routing traces: their statistics are those of published traces, and the native routers choose their experts."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import ModelSpec, spec_for
from ipex_lookahead.bench import shapes, step
from ipex_lookahead.bench.routing import CASES, FIRST_TOKEN, Routing, routing_trace, statistics, trace_experts
from ipex_lookahead.bench.steps import Steps
from ipex_lookahead.cli.main import run
from ipex_lookahead.controller.calibration import Calibration
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.engines.load_weights import random_weights
from ipex_lookahead.engines.native import core
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import EngineError, InputError

SMALL = {"hidden_size": 128, "vocab_size": 400, "num_experts": 16, "moe_intermediate_size": 32}
TINY = {
    "qwen3-30b-a3b": {**SMALL, "num_hidden_layers": 4},
    "gpt-oss-20b": {"hidden_size": 128, "vocab_size": 400, "intermediate_size": 64, "num_hidden_layers": 4},
    "gemma4-26b-a4b": {**SMALL, "intermediate_size": 64, "num_hidden_layers": 6},
    "qwen3.5-35b-a3b": {**SMALL, "shared_expert_intermediate_size": 32, "num_hidden_layers": 4},
    "lfm2-8b-a1b": {"hidden_size": 128, "vocab_size": 400, "intermediate_size": 64, "moe_intermediate_size": 32},
    "glm-4.7-flash": {"hidden_size": 128, "vocab_size": 400, "intermediate_size": 64, "moe_intermediate_size": 32,
                      "num_hidden_layers": 3},
}  # fmt: skip
"""Mixtures with all kinds of routers: softmax before and after the choice, sigmoid with correction, Gemma's norms."""


def tiny_config(name: str, layers: int | None = None) -> dict[str, Any]:
    layers = layers or TINY[name].get("num_hidden_layers")
    own = {**shapes.config_of(name, layers), **TINY[name]}
    return own if layers is None else {**own, "num_hidden_layers": layers}


def tiny(name: str) -> ModelSpec:
    return spec_for(tiny_config(name))


def test_a_seed_gives_the_same_trace() -> None:
    trace = routing_trace(256, 8, 300, seed=(0, 3))
    assert (trace.shape, trace.dtype) == ((300, 8), np.int32)
    assert np.array_equal(trace, routing_trace(256, 8, 300, seed=(0, 3)))
    assert not np.array_equal(trace, routing_trace(256, 8, 300, seed=(0, 4)))
    assert all(len({*row}) == 8 for row in trace)
    assert (trace.min(), trace.max()) == (0, 255)


def test_a_trace_has_the_popularity_of_qwens_experts() -> None:
    """Published: the most popular experts of other prompts have these shares of the choices of 8 of 256."""
    shares = []
    for layer in range(8):
        trace = routing_trace(256, 8, 6000, seed=(0, layer))
        known, other = (np.bincount(half.ravel(), minlength=256) for half in np.split(trace, 2))
        shares.append(np.cumsum(other[np.argsort(-known, kind="stable")]) / other.sum())
    found = np.mean(shares, axis=0)
    for most, published in ((8, 0.10), (16, 0.17), (32, 0.30), (64, 0.51), (128, 0.77)):
        assert abs(found[most - 1] - published) < 0.05


def test_consecutive_rows_share_experts_as_published() -> None:
    """Published for GLM-4.7-Flash, 4 of 64: 0.257; for 8 of 256, 0.69 of the choices are in a cache of 39."""
    assert abs(statistics([routing_trace(64, 4, 3000, seed=layer) for layer in range(8)], 64)["shared"] - 0.257) < 0.04
    trace = [routing_trace(256, 8, 1500, seed=layer) for layer in range(4)]
    cached, hits = [], 0
    for expert in trace[0].ravel().tolist():
        hits += expert in cached
        cached = [expert, *(one for one in cached if one != expert)][:39]
    assert 0.5 < hits / trace[0].size < 0.69
    found = statistics(trace, 256)
    assert found["distinct"][1] == 8
    assert 8 * 1.6 < found["distinct"][2] < 8 * 1.9
    assert 8 * 3.5 < found["distinct"][8] < 8 * 6
    assert 0.5 < found["entropy"] < 1


def test_statistics_of_choices_that_are_known() -> None:
    found = statistics([np.array([[0, 1], [1, 2], [3, 0], [3, 0]], np.int32)], 4)
    assert found["distinct"] == {1: 2.0, 2: 2.5, 4: 4.0}
    assert found["shared"] == 0.5
    loads = Counter([0, 1, 1, 2, 3, 0, 3, 0])
    assert found["entropy"] == pytest.approx(-sum(n / 8 * np.log(n / 8) for n in loads.values()) / np.log(4))
    assert statistics([np.array([[0, 1]], np.int32)], 4)["shared"] == 0.0


@pytest.mark.parametrize("name", TINY)
def test_native_routers_choose_the_experts_of_every_case(name: str) -> None:
    spec = tiny(name)
    routing = Routing(spec, windows=3, rows=8)
    engine = NativeEngine.build(spec, "sym_int8", routing.weights(random_weights(spec, "sym_int8")), threads=1)
    cache = engine.new_cache(blank=20)
    used = sum(mixture.used for mixture in spec.mixtures)
    for case in CASES:
        for rows, window in ((1, 0), (2, 1), (8, 2), (40, 0)):
            tokens = routing.tokens(case, window, rows)
            assert engine.forward(chain(cache, tokens)).experts == routing.experts(tokens), (case, rows)
    most = sum(min(len(mixture.experts), 8 * mixture.used) for mixture in spec.mixtures)
    expected = {case: routing.experts(routing.tokens(case, 1, 8)) for case in CASES}
    assert expected["best"] == used < expected["trace"] < expected["worst"] == most


@pytest.mark.parametrize("low_bit", ["sym_int4", "q4_k", "fp16"])
def test_formats_of_the_embedding(low_bit: str) -> None:
    spec = (
        tiny("qwen3-30b-a3b") if low_bit != "q4_k" else spec_for({**tiny_config("qwen3-30b-a3b"), "hidden_size": 256})
    )
    routing = Routing(spec, windows=1, rows=4)
    engine = NativeEngine.build(spec, low_bit, routing.weights(random_weights(spec, low_bit)), threads=1)
    tokens = routing.tokens("worst", 0, 4)
    assert engine.forward(chain(engine.new_cache(), tokens)).experts == routing.experts(tokens)


def test_tokens_are_apart_and_in_the_vocabulary() -> None:
    routing = Routing(tiny("qwen3-30b-a3b"), windows=100, rows=8)
    steps = [routing.tokens(case, window, 8) for case in CASES for window in range(5)]
    tokens = np.concatenate(steps)
    assert len({*tokens.tolist()}) == len(tokens)
    assert (tokens.min(), tokens.max() < 400) == (FIRST_TOKEN, True)
    assert np.array_equal(routing.tokens("trace", 0, 8), routing.tokens("trace", 5, 8)), "5 windows fit"
    assert len(Routing(tiny("qwen3-30b-a3b"), 9, 64).tokens("trace", 0, 500)) == 500


def test_more_rows_of_a_trace_read_more() -> None:
    spec = tiny("qwen3-30b-a3b")
    counts = [trace_experts(spec, rows) for rows in (1, 2, 4, 8)]
    assert counts[0] == sum(mixture.used for mixture in spec.mixtures)
    assert counts == sorted(counts)
    assert trace_experts(spec_for(shapes.config_of("smollm2-135m")), 4) == 0


def test_the_cost_curve_of_the_controller_follows_the_trace() -> None:
    """Seconds are 1 + experts: calibrated with unrelated rows, the curve learns how many experts a text needs."""
    layers, experts, used, rows = 6, 128, 8, (1, 2, 4, 8)
    free = {n: round(layers * experts * (1 - (1 - used / experts) ** n)) for n in rows}
    measured = tuple(1.0 + free[n] for n in rows)
    curve = CostCurve(Calibration(rows, measured, 0.0, 0.0, tuple(free.values()), 1.0, layers * experts))
    assert curve(4) == pytest.approx(measured[2], rel=0.01)
    traces = [routing_trace(experts, used, 600, seed=(0, layer)) for layer in range(layers)]
    seen: dict[int, list[int]] = {n: [] for n in rows}
    for begin in range(0, 592, 8):
        for n in rows:
            seen[n].append(sum(len({*trace[begin : begin + n].ravel()}) for trace in traces))
            curve.timed(n, 0, 1.0 + seen[n][-1], seen[n][-1])
    for n in rows[1:]:
        real = 1.0 + float(np.mean(seen[n]))
        assert real < 0.93 * measured[rows.index(n)], "unrelated rows read more"
        assert curve(n) == pytest.approx(real, rel=0.06)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (4, 128, 96, 4, 2, 16, 400, 512)
    more = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    monkeypatch.setitem(shapes._SHAPES, "qwen3-30b-a3b", ("qwen3_moe", sizes, more))
    monkeypatch.setattr(core, "read_bandwidth", lambda size, threads: 1e9)
    monkeypatch.setattr(core, "integer_peak", lambda threads, isa="": 1e9)


def test_bench_step_measures_all_cases_of_a_mixture(small: None) -> None:
    report = step.measure("qwen3-30b-a3b", "sym_int8", [1, 4, 70], threads=1, repeat=2, context=9)
    one, four, prompt = report["steps"]
    assert one["cases"]["worst"]["experts"] == one["cases"]["best"]["experts"] == one["experts"] == 4 * 2
    assert four["cases"]["best"]["experts"] == 4 * 2
    assert four["cases"]["worst"]["experts"] == 4 * 8
    assert 4 * 2 < four["experts"] == four["cases"]["trace"]["experts"] < 4 * 8
    assert four["cases"]["trace"]["ms"] == four["ms"]
    assert [*prompt["cases"]] == ["trace"]
    each = (four["cases"]["worst"]["bytes"] - four["cases"]["best"]["bytes"]) / (4 * 6)
    assert each == 3 * 32 * 128 * 17 / 16, "the bytes of an expert in sym_int8"
    assert one["cases"]["best"]["bytes"] == report["step_bytes"] + report["kv_bytes"]
    assert four["gb_s"] == pytest.approx(four["cases"]["trace"]["bytes"] / four["ms"] / 1e6)
    assert report["routing"]["distinct"][1] == 2


def test_layers_are_extrapolated(small: None) -> None:
    whole, part = (
        step.measure("qwen3-30b-a3b", "sym_int8", [1, 2], threads=1, repeat=2, layers=layers) for layers in (None, 2)
    )
    assert (part["layers"], part["measured_layers"]) == (4, 2)
    norm = 4 * 128  # the last norm is no part of a phase
    for fact in ("weight_bytes", "step_bytes", "kv_bytes"):
        assert 0 <= part[fact] - whole[fact] <= norm
    for case in ("best", "worst"):
        one, all_layers = (found["steps"][1]["cases"][case] for found in (part, whole))
        assert one["experts"] == all_layers["experts"]
        assert 0 <= one["bytes"] - all_layers["bytes"] <= norm
    with pytest.raises(InputError, match="layers is 5; it must be a multiple of 1 up to 4"):
        step.measure("qwen3-30b-a3b", layers=5)


def test_other_experts_than_those_of_the_trace_are_an_error(small: None) -> None:
    spec = shapes.shape_of("qwen3-30b-a3b")
    engine = NativeEngine.random(spec, "sym_int8", threads=1)  # its routers know of no trace
    with pytest.raises(EngineError, match="read .* experts, but chose"):
        Steps(engine, Routing(spec, 1, 8), 0, 1.0).warm_up(8)


def test_the_table_names_the_cases(small: None, capsys: Any) -> None:
    command = "bench step --shape qwen3-30b-a3b --low-bit sym_int8 --rows 1,2 --threads 1 --repeat 2 --layers 2 --json"
    assert run(command.split()) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["steps"][1]["cases"].keys() == {*CASES}
    assert "a row shares " in " ".join(said.err.split())
    for case in CASES:
        assert f"  {case} " in said.err
