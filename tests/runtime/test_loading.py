"""Which engine loads a model, and which models none does."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead import LLM
from ipex_lookahead.architectures import ENCODERS, model_types
from ipex_lookahead.cli.main import run
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.opencl.device import device_of
from ipex_lookahead.errors import EngineError, UnsupportedModelError
from ipex_lookahead.runtime.loading import choose_engine, load_text_model
from ipex_lookahead.transformers import AutoModelForCausalLM
from tests.support.chat_tokenizer import write_chat_llama


@pytest.mark.parametrize("engine", ["auto", "native", "torch"])
def test_an_encoder_writes_no_text(engine: str, tmp_path: Path) -> None:
    for kind, said in (("bert", "no text"), ("mpnet", "not one of the supported encoders bert, ")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(UnsupportedModelError, match=f"{kind} is an encoder: .*{said}") as caught:
            choose_engine(engine, LoadRequest(tmp_path))
        assert (".embed(texts)" in caught.value.hint) == (kind == "bert")


def test_no_family_is_an_encoder() -> None:
    assert ENCODERS.isdisjoint(model_types())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_llama(tmp_path_factory.mktemp("words") / "llama")


@pytest.mark.parametrize("device", ["xpu", "xpu:1", "opencl", "opencl:0"])
def test_xpu_and_opencl_select_the_opencl_engine(device: str, tmp_path: Path) -> None:
    """Whatever the model and the other options are: nothing else runs where an Intel GPU is requested."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for options in ({}, {"ipex": True}, {"gpu_layers": 1}):
        assert choose_engine("auto", LoadRequest(tmp_path, device=device, **options)) == (
            "opencl",
            f"the device is {device}",
        )
    for engine in ("native", "torch"):
        assert choose_engine(engine, LoadRequest(tmp_path, device=device)) == (engine, "requested")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert choose_engine("auto", LoadRequest(tmp_path))[0] == "torch"
    with pytest.raises(UnsupportedModelError, match="the opencl engine does not support model type 'gpt2'") as caught:
        choose_engine("auto", LoadRequest(tmp_path, device=device))
    assert "engine='torch'" in caught.value.hint


@pytest.mark.parametrize(
    "use",
    [
        lambda path: LLM(path, device="xpu", progress=False),
        lambda path: load_text_model(str(path), device="xpu", progress=False),
        lambda path: AutoModelForCausalLM.from_pretrained(path, device="xpu", progress=False),
        lambda path: AutoModelForCausalLM.from_pretrained(path, device_map="xpu", progress=False),
        lambda path: AutoModelForCausalLM.from_pretrained(path, progress=False, threads=1).to("xpu"),
        lambda path: AutoModelForCausalLM.from_pretrained(path, progress=False, threads=1).xpu(),
    ],
)
def test_xpu_without_pyopencl_names_the_extra(
    use: Callable[[Path], Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    device_of.cache_clear()
    with pytest.raises(EngineError, match="the OpenCL engine needs pyopencl") as caught:
        use(folder)
    assert "ipex-lookahead[xpu]" in caught.value.hint


@pytest.mark.parametrize("command", [["generate", "hi"], ["chat"], ["serve"], ["doctor", "--tiny"]])
def test_commands_with_xpu_without_pyopencl_name_the_extra(
    command: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == ["serve"]:
        pytest.importorskip("fastapi")
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    device_of.cache_clear()
    model = [] if command[0] == "doctor" else ["-m", str(folder)]
    assert run([*command, *model, "--device", "xpu"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "the OpenCL engine needs pyopencl" in said
    assert "ipex-lookahead[xpu]" in said
