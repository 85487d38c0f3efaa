"""bench step and bench kernels: what they report, on shapes small enough for a test; never how fast."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from click.testing import CliRunner

from ipex_lookahead.bench import kernels, shapes, step, steps
from ipex_lookahead.cli.main import cli
from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.native import core, linear
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.errors import InputError
from tests.support.specs import NAMED, make_spec


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ("llama", (2, 64, 96, 4, 2, 16, 200, 512), {"tie_word_embeddings": True})
    monkeypatch.setitem(shapes._SHAPES, "smollm2-135m", tiny)
    monkeypatch.setattr(kernels, "WORKING_SET", 1 << 16)
    monkeypatch.setattr(core, "read_bandwidth", lambda size, threads: 1e9)
    monkeypatch.setattr(core, "integer_peak", lambda threads, isa="": 1e9)


def test_the_shapes_are_those_of_the_models() -> None:
    assert step.linear_operations(step.shape_of("llama2-7b")) == 2 * (6_476_005_376 + 32000 * 4096)
    with pytest.raises(InputError, match="'gpt2'.*llama2-7b"):
        step.shape_of("gpt2")


def test_a_report_counts_bytes_and_operations() -> None:
    report = step.measure("smollm2-135m", "sym_int4", [1, 4], head_low_bit="sym_int8", threads=1, repeat=3, context=70)
    assert [s["rows"] for s in report["steps"]] == [1, 4]
    assert report["steps"][0]["ratio"] == 1
    assert report["head_low_bit"] == "sym_int8"
    for one in report["steps"]:
        seconds = one["ms"] / 1e3
        assert one["gb_s"] * 1e9 * seconds == pytest.approx(report["weight_bytes"] + report["kv_bytes"])
        assert one["gops"] * 1e9 * seconds == pytest.approx(
            one["rows"] * step.linear_operations(step.shape_of("smollm2-135m"))
        )


def test_phases_tell_where_the_time_of_a_step_goes() -> None:
    report = step.measure("smollm2-135m", "q4_k", [1, 40], head_low_bit="sym_int8", threads=2, repeat=2, phases=True)
    one, many = (each["phases"] for each in report["steps"])
    names = ["embedding", "qkv", "attention", "output", "gate_up", "down", "head", "between"]
    assert [part["name"] for part in one] == [part["name"] for part in many] == names
    layers, rows_made_by_all = 2, 1
    assert {part["name"]: part["count"] for part in one} == {
        name: rows_made_by_all if name in ("embedding", "head", "between") else layers for name in names
    }
    counts = {part["name"]: part["count"] for part in many}
    assert (counts["qkv"], counts["attention"]) == (2 * layers, layers), "many rows have a phase of their own"
    for part in [*one, *many]:
        assert part["ms"] > 0
        assert 0 <= part["waiting"] <= 1
    read = sum(part["gb_s"] * 1e6 * part["ms"] for part in one)
    embedding = report["weight_bytes"] - read  # tied: nothing but norms is left over
    assert 0 <= embedding < 0.05 * report["weight_bytes"]


def test_phases_of_a_mixture_count_the_experts_of_a_row() -> None:
    engine = NativeEngine.random(make_spec(**NAMED["qwen3_moe"]), "sym_int8", threads=1)
    batch = steps.step_batch(engine.new_cache(), 3)
    assert engine.forward(batch).timings is None
    batch.wants = OutputRequest(timings=True)
    found = {part.name: part for part in engine.forward(batch).timings or ()}
    assert found["router"].count == found["gate_up"].count == len(engine.spec.layers)
    read = sum(part.weight_bytes for part in found.values())
    facts = engine.describe()
    assert 0 <= facts["step_bytes"] - read < 0.2 * facts["step_bytes"]


@pytest.mark.parametrize("rows", [[0], [], [500]])
def test_rows_that_do_not_fit_are_refused(rows: list[int]) -> None:
    with pytest.raises(InputError, match="do not fit"):
        step.measure("smollm2-135m", rows=rows, context=100, threads=1, repeat=1)


def last_line(arguments: list[str]) -> Any:
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_the_commands_print_one_object_as_their_last_line() -> None:
    report = last_line("bench step --rows 1,2 --threads 1 --repeat 2 --kv-cache int8 --json".split())
    assert set(report) >= {"shape", "low_bit", "weight_bytes", "bandwidth_gb_s", "steps"}
    assert set(report["steps"][0]) == {"rows", "ms", "ratio", "experts", "gb_s", "gops"}
    report = last_line("bench kernels --shape 64,96 --low-bit bf16 --isa scalar --rows 1,3 --threads 1 --json".split())
    assert report["kernels"][0]["format"] == "bf16"
    assert [s["rows"] for s in report["kernels"][0]["steps"]] == [1, 3]


@pytest.mark.parametrize(
    "arguments",
    [["step", "--rows", "1,x"], ["step", "--shape", "gpt2"], ["kernels", "--shape", "5"], ["kernels", "--rows", "0"]],
)
def test_wrong_arguments_are_a_usage_error(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["bench", *arguments]).exit_code == 2


def test_unknown_formats_and_instruction_sets_are_named() -> None:
    with pytest.raises(InputError, match="'sym_int9'.*sym_int4"):
        kernels.measure(["sym_int9"], threads=1)
    with pytest.raises(InputError, match="'neon'.*scalar"):
        kernels.measure(["sym_int4"], ["neon"], threads=1)


def test_a_kernel_bench_tells_how_far_it_is_and_ends_when_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def probe(x: Any) -> None:
        calls.append(1)

    monkeypatch.setattr(linear, "linear_layer", lambda weight, **options: probe)
    monkeypatch.setattr(kernels, "PATIENCE_SECONDS", 0.0)
    said: list[str] = []
    report = kernels.measure(["sym_int4"], ["avx2"], [1, 4], shape=(64, 64), threads=1, report=said.append)
    assert len(calls) == 2, "one matrix for each number of rows"
    assert [one["rows"] for one in report["kernels"][0]["steps"]] == [1, 4]
    assert said[-2:] == ["sym_int4 on avx2: 1 row (1 of 2)", "sym_int4 on avx2: 4 rows (2 of 2)"]


def test_a_step_bench_tells_how_far_it_is() -> None:
    said: list[str] = []
    step.measure("smollm2-135m", rows=[1, 2], threads=1, repeat=2, context=3, report=said.append)
    assert said[-4:] == [f"round {n} of 2: {rows}" for n in (1, 2) for rows in ("1 row", "2 rows")]
