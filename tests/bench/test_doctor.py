"""The examination behind ``doctor``: what it finds wrong, and that it tells nothing private."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import transformers

from ipex_lookahead.bench import examine as doctor
from ipex_lookahead.bench.examine import FORMATS, examine, kernels, problems
from ipex_lookahead.bench.facts import without_paths
from ipex_lookahead.engines.native import linear
from ipex_lookahead.engines.torch.linear_kernels import GenericKernel, NativeKernel
from ipex_lookahead.errors import EngineError, MissingPackageError
from ipex_lookahead.formats import FORMATS as EVERY
from ipex_lookahead.system.extras import installing


@pytest.fixture(autouse=True)
def _small_kernels(monkeypatch):
    monkeypatch.setattr(doctor, "KERNEL_SHAPE", (64, 64))


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_healthy_machine(tmp_path):
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip(f"transformers {transformers.__version__} has no deterministic mode to pass")
    heard = []
    report = examine("cpu", tiny=True, threads=1, prompts=2, max_new_tokens=12, say=heard.append)
    assert report["problems"] == []
    assert report["healthy"]
    assert [(e["engine"], e["deterministic"]) for e in report["engines"]] == [
        ("native", False),
        ("torch", False),
        ("torch", True),
    ]
    for tried in report["engines"]:
        assert tried["plain_tok_s"] > 0
        assert [row["answers"] for row in tried["lookahead"]] == [2, 2]
    for tried in (report["engines"][0], report["engines"][2]):
        assert [row["equal"] for row in tried["lookahead"]] == [2, 2]
    assert {k["format"] for k in report["kernels"]} == set(FORMATS)
    assert {k["backend"] for k in report["kernels"]} == {"native", "generic"}
    assert all(set(k["milliseconds"]) == {"1", "4", "16"} for k in report["kernels"])
    assert report["engines"][1]["backends"] == {"sym_int4": "native"}
    assert report["by_bytes"]["different"] == []
    assert report["by_bytes"]["formats"] == len(EVERY)
    assert heard[:2] == ["versions and device", "kernels"]
    said = json.dumps(report)
    for private in (str(tmp_path.parent), "/home", "/tmp", "/root", "site-packages"):
        assert private not in said


def test_an_instruction_set_that_is_wrong_is_seen(monkeypatch):
    made = linear.linear_layer

    def off(weight, *, threads, isa):
        layer = made(weight, threads=threads, isa=isa)
        return layer if isa == "scalar" or weight.format != "q4_k" else lambda x: layer(x) + (len(x) > 7)

    monkeypatch.setattr(linear, "linear_layer", off)
    assert doctor.compare_with_scalar(1)["different"] == ["q4_k"]


def test_the_small_random_model_is_the_same_everywhere(tmp_path):
    first, again = doctor._write_tiny(tmp_path / "first"), doctor._write_tiny(tmp_path / "again")
    assert first == again
    assert len(first) == 8
    assert all(0 <= token < 512 for prompt in first for token in prompt)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_without_torch_its_engine_is_left_out(monkeypatch):
    for name in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    report = examine("cpu", tiny=True, threads=1, prompts=2, max_new_tokens=8)
    assert report["problems"] == []
    assert report["kernels"] == []
    assert report["by_bytes"]["formats"] == len(EVERY)
    [native] = report["engines"]
    assert native["engine"] == "native"
    assert [row["equal"] for row in native["lookahead"]] == [2, 2]
    assert (
        report["without_torch"] == f"Without torch and transformers the torch engine is left out: {installing('torch')}"
    )


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_without_torch_a_device_that_only_torch_reaches_is_the_sentence(monkeypatch, device):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingPackageError, match=rf"^device='{device}' needs torch, which is not installed\nhint: pip"
    ):
        examine(device, tiny=True)


def test_a_kernel_that_is_wrong_is_reported_and_another_may_serve(monkeypatch):
    run = NativeKernel.run
    monkeypatch.setattr(NativeKernel, "run", lambda self, x: run(self, x) * 1.5)
    found = kernels(torch.device("cpu"), 1)
    wrong = [entry for entry in found if "problem" in entry]
    assert {entry["backend"] for entry in wrong} == {"native"}
    assert all("self-test" in entry["problem"] for entry in wrong)
    assert problems({"kernels": found, "engines": []}) == []
    monkeypatch.setattr(GenericKernel, "run", lambda self, x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kernels(torch.device("cpu"), 1)


def test_problems_in_sentences():
    def tried(engine, deterministic, equal, **more):
        row = {"strategy": "prompt_lookup", "draft_tokens": 3, "equal": equal, "answers": 3}
        return {"engine": engine, "deterministic": deterministic, "lookahead": [row], **more}

    fine = [{"format": name, "backend": "generic", "milliseconds": {}} for name in FORMATS]
    # Equal text is not promised for torch; it is for native and for the deterministic mode.
    assert problems({"kernels": fine, "engines": [tried("torch", False, 1, row_invariant=False)]}) == []
    [said] = problems({"kernels": fine, "engines": [tried("torch", True, 1)]})
    assert said == "torch (deterministic): with prompt_lookup 2 of 3 answers are not plain decoding's"
    [said] = problems({"kernels": fine, "engines": [tried("native", False, 2, row_invariant=True)]})
    assert said.startswith("native: with prompt_lookup 1 of 3")
    [said] = problems({"kernels": fine, "engines": [{"engine": "torch", "deterministic": False, "problem": "broken"}]})
    assert said == "torch: broken"
    wrong = {"isa": "amx_int8", "formats": 30, "different": ["q4_k", "nf4"]}
    [said] = problems({"kernels": fine, "engines": [], "by_bytes": wrong})
    assert said == "amx_int8 gives other bytes than scalar for q4_k, nf4"
    nothing = [{"format": name, "backend": "generic", "problem": "no"} for name in FORMATS]
    assert len(problems({"kernels": nothing, "engines": []})) == len(FORMATS)


@pytest.mark.usefixtures("one_thread")
def test_an_engine_that_fails_does_not_hide_the_others(monkeypatch):
    run = doctor.run_engine

    def failing(source, options, *rest):
        if options["engine"] == "torch":
            raise EngineError(f"cannot read {source}/model.safetensors\nmore")
        return run(source, options, *rest)

    monkeypatch.setattr(doctor, "run_engine", failing)
    report = examine("cpu", tiny=True, threads=1, prompts=1, max_new_tokens=8)
    assert "lookahead" in report["engines"][0]
    assert report["engines"][1]["problem"] == "cannot read model.safetensors"
    assert not report["healthy"]


def test_an_absent_device_is_an_error_that_says_what_to_install():
    if torch.cuda.is_available():
        pytest.skip("this machine has a cuda device")
    with pytest.raises(EngineError, match="cuda") as caught:
        examine("cuda", tiny=True)
    assert "pytorch.org" in caught.value.hint


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("/home/someone/models/x.gguf: broken", "x.gguf: broken"),
        ("cannot read '/a/b c/d.json'", "cannot read '"),
        ("see https://github.com/pytorch/rfcs/pull/17", "see https://github.com/pytorch/rfcs/pull/17"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("8 / 16 rows", "8 / 16 rows"),
        (r"C:\Users\someone\x.gguf", "x.gguf"),
    ],
)
def test_paths_are_left_out(said, kept):
    assert without_paths(said).startswith(kept)
    assert "someone" not in without_paths(said)


@pytest.mark.usefixtures("one_thread")
def test_a_model_in_a_folder_is_called_by_its_name_alone(tmp_path):
    folder = tmp_path / "private" / "my-model"
    doctor._write_tiny(folder)
    (folder / "tokenizer.json").unlink()
    report = examine("cpu", model=str(folder), threads=1, prompts=1, max_new_tokens=8)
    assert report["model"] == "my-model"
    assert "private" not in json.dumps(report)
    assert all("no tokenizer" in tried["problem"] for tried in report["engines"])
