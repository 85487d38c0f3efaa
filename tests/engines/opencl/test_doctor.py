"""``doctor`` on an OpenCL device: what it compares and measures, and that nothing wrong is passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead import EngineError, InputError
from ipex_lookahead.bench import examine_opencl as doctor_opencl
from ipex_lookahead.bench.examine_opencl import examine_opencl, problems
from ipex_lookahead.cli.main import run
from ipex_lookahead.engines.opencl import examination
from ipex_lookahead.engines.opencl.device import device_of, listed
from ipex_lookahead.engines.opencl.examination import bandwidth, details, kernel_problem
from ipex_lookahead.engines.opencl.linear import Product

TINY = ["doctor", "--tiny", "--threads", "1", "--answers", "5", "-n", "12"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # which the report is written to
    monkeypatch.setattr(doctor_opencl, "FORMATS", ("sym_int4", "q6_k", "bf16"))
    monkeypatch.setattr(doctor_opencl, "KERNEL_SHAPE", (64, 64))
    monkeypatch.setattr(doctor_opencl, "STEP_ROWS", (1, 4, 16))
    monkeypatch.setattr(doctor_opencl, "CONTEXTS", (30, 100, 4096))  # the tiny model has no 4,096 positions
    monkeypatch.setattr(doctor_opencl, "PROFILED_ROWS", (1, 20))
    monkeypatch.setattr(examination, "READ_BYTES", 1 << 20)


def test_one_report_to_paste(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run([*TINY, "--device", "opencl:0", "--json"]) == 0
    streams = capsys.readouterr()
    report, said = json.loads(streams.out), streams.err
    assert report["healthy"]
    assert [(one["format"], "problem" in one) for one in report["kernels"]] == [
        ("sym_int4", False), ("q6_k", False), ("bf16", False),
    ]  # fmt: skip
    assert report["device"]["driver"] == listed()[0].driver
    assert report["device"]["extensions"]
    assert set(report["bandwidth"]) >= {
        "device_reads", "device_copies", "to_the_device", "from_the_device",
    }  # fmt: skip
    assert set(report["launches"]) == {"enqueue_us", "launched_us", "alone_us"}
    assert report["logits"] == {"equal": 2, "answers": 2}
    native, ours = report["engines"]
    assert (native["engine"], ours["engine"]) == ("native", "opencl")
    assert [row["strategy"] for row in ours["lookahead"]] == ["none", "prompt_lookup", "auto"]
    assert all((row["equal"], row["answers"]) == (5, 5) for row in ours["lookahead"])
    assert {at: set(steps) for at, steps in report["steps"].items()} == dict.fromkeys(("30", "100"), {"1", "4", "16"})
    assert [(one["rows"], one["positions"]) for one in report["profiles"]] == [(1, 30), (1, 100), (20, 30), (20, 100)]
    (file,) = tmp_path.glob("ipex-lookahead-doctor-*.md")
    written = file.read_text("utf-8")
    assert json.loads(written.partition("```json\n")[2].partition("\n```")[0]) == report
    assert f"Attach this file to an issue: {file.name}" in said
    for line in (
        f"- subgroups: {device_of('opencl:0').paths['subgroups']}",
        "Memory: device reads",
        "| native | ",
        "Logits by bytes: 2 of 2",
        "| rows of a step | ms at 30 | ms at 100 |",
        "Launches: ",
        "A step of 20 rows at 100 positions: ",
        "| attend ",
        "Everything works.",
    ):
        assert line in said, line
        assert line in written, line
    assert "/root" not in said
    assert "site-packages" not in said


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*TINY, "--device", "opencl:77"]) == 1
    assert "the OpenCL devices here are opencl:0" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(InputError):
        examine_opencl("opencl:x", tiny=True)
    if not any(one.kind == "GPU" for one in listed()):
        with pytest.raises(EngineError, match="0 of the OpenCL devices here") as caught:
            examine_opencl("xpu", tiny=True)
        assert caught.value.hint


def test_kernels_and_tokens_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Product.result
    wrong = lambda self: np.nextafter(result(self), np.float32(9))  # noqa: E731
    monkeypatch.setattr(Product, "result", wrong)
    assert "values differ from the CPU's for 1 rows of a 48 x 172 matrix" in kernel_problem(
        device_of(None), "sym_int4", 1
    )
    row = {"strategy": "auto", "draft_tokens": 7, "equal": 1, "answers": 3}
    report: dict[str, Any] = {
        "kernels": [{"format": "q4_k", "backend": "opencl", "problem": "it broke"}],
        "engines": [{"engine": "opencl", "lookahead": [row]}, {"engine": "opencl", "problem": "lost"}],
        "logits": {"equal": 1, "answers": 2},
        "bandwidth_problem": "no memory",
        "paths": {"subgroups": "its self-test failed: fma", "integer dot products": "not offered"},
    }
    assert problems(report) == [
        "q4_k: it broke", "bandwidth: no memory", "opencl: with auto 2 of 3 answers differ from the CPU's",
        "opencl: lost", "opencl: logits of 1 answers differ from the CPU's", "subgroups: its self-test failed: fma",
    ]  # fmt: skip


def test_a_driver_that_fails_does_not_hide_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the driver fell over\nmore")

    monkeypatch.setattr(examination, "kernel_problem", broken)
    monkeypatch.setattr(examination, "bandwidth", broken)
    monkeypatch.setattr(doctor_opencl, "answers_of", broken)
    report = examine_opencl("opencl:0", tiny=True, threads=1, prompts=1, max_new_tokens=4)
    assert not report["healthy"]
    assert report["problems"] == [
        *(f"{name}: the driver fell over" for name in ("sym_int4", "q6_k", "bf16", "bandwidth", "opencl"))
    ]


def test_what_a_device_is() -> None:
    device = device_of(None)
    facts = details(device)
    assert facts["total_memory"] >= facts["largest_buffer"] > 0
    assert facts["rounded_division"] in ("offered", "not offered, and the self-test passed")
    named = set(facts["extensions"].split(", ")) | set(facts["without"].split(", "))
    assert named >= set(examination.EXTENSIONS)
    assert all(rate > 0 for rate in bandwidth(device).values())
