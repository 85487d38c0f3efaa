"""What can be known about the ipex-llm engine without ipex-llm; the rest is in ``tests/ipex_llm``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.hf_folder import write_hf_folder
from ipex_lookahead.engines.ipex_llm import engine as ipex_llm
from ipex_lookahead.engines.ipex_llm.engine import STACK, is_ipex_llm_model
from ipex_lookahead.errors import EngineError, InputError
from ipex_lookahead.formats import dequantize
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

ROOT = Path(__file__).resolve().parents[3]


def test_without_the_package_the_error_names_the_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        ipex_llm.importlib.util, "find_spec", lambda name, *rest: None if name == "ipex_llm" else found(name, *rest)
    )
    with pytest.raises(EngineError, match="not installed") as error:
        AutoModelForCausalLM.from_pretrained(folder, engine="ipex-llm", load_in_low_bit="sym_int4", progress=False)
    assert "pip install ipex-llm==2.2.0 torch==2.1.2 transformers==4.37.0" in str(error.value.hint)


def test_the_tests_run_on_the_stack_that_the_error_names() -> None:
    assert (ROOT / "scripts" / "ipex-llm-stack.txt").read_text(encoding="utf-8").split() == list(STACK)


def test_what_is_no_model_of_ipex_llms() -> None:
    assert not is_ipex_llm_model(torch.nn.Linear(2, 2))
    assert not is_ipex_llm_model("a model")
    theirs = type("LowBitLinear", (torch.nn.Linear,), {"__module__": "ipex_llm.transformers.low_bit_linear"})
    assert is_ipex_llm_model(torch.nn.Sequential(theirs(2, 2)))


@pytest.mark.parametrize("tie", [True, False])
def test_any_checkpoint_as_a_plain_folder(tmp_path: Path, tie: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipex_lookahead.checkpoints.hf_folder.SHARD", 20_000)  # several files
    first = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", quant="Q4_0", tie=tie))
    second = open_checkpoint(write_hf_folder(first, tmp_path / "plain"))
    assert len(list((tmp_path / "plain").glob("*.safetensors"))) > 1
    assert sorted(second.names()) == sorted(first.names())
    for name in first.names():
        assert (dequantize(first.read(name)) == dequantize(second.read(name))).all()
    for key in ("hidden_size", "tie_word_embeddings", "rope_theta", "max_position_embeddings"):
        assert first.config[key] == second.config[key]
    with pytest.raises(InputError, match="not an empty folder"):
        write_hf_folder(first, tmp_path / "plain")
    with pytest.raises(InputError, match="float32 or float16"):
        write_hf_folder(first, tmp_path / "other", dtype="bfloat16")
