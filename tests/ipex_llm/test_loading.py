"""Loading through ipex-llm: formats, checkpoints of every kind, models already loaded, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipex_llm", reason="ipex-llm is not installed here; `make test-ipex-llm` has it")

import torch
from transformers import AutoModelForCausalLM as Plain
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from ipex_lookahead import AutoModelForCausalLM, wrap
from ipex_lookahead.errors import EngineError, InputError, LowBitFormatError, UnsupportedModelError
from tests.ipex_llm.conftest import SIZES
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

IDS = torch.tensor([[1, 5, 9, 5, 9]])
SETTINGS: dict[str, Any] = {"max_new_tokens": 16, "eos_token_id": None}


def load(path: Path, **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, engine="ipex-llm", progress=False, **kwargs)


@pytest.mark.parametrize("low_bit", ["sym_int4", "asym_int4", "sym_int5", "sym_int8", "bf16"])
def test_formats(tiny_folder: Path, low_bit: str) -> None:
    model = load(tiny_folder, load_in_low_bit=low_bit)
    facts = model.engine.describe()
    assert facts["engine"] == "ipex-llm"
    assert facts["low_bit"] == model.low_bit == low_bit
    assert facts["ipex_llm"] == "2.2.0"
    assert facts["chosen"] == "ipex-llm: requested"
    assert facts["kv_bytes_per_token"] > 0
    assert model.generate(IDS, lookahead=3, **SETTINGS).shape == (1, 21)


def test_no_format_is_bf16_and_a_synonym_is_known(tiny_folder: Path) -> None:
    assert load(tiny_folder).low_bit == "bf16"
    assert load(tiny_folder, load_in_4bit=True).low_bit == "sym_int4"


def test_a_gguf_file_and_a_folder_of_ours(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="Q4_0", **SIZES)
    from_file = load(file, load_in_low_bit="sym_int4")
    native = AutoModelForCausalLM.from_pretrained(file, engine="native", progress=False)
    native.save_low_bit(tmp_path / "ours")
    from_folder = load(tmp_path / "ours", load_in_low_bit="sym_int4")
    assert from_file.generate(IDS, **SETTINGS).tolist() == from_folder.generate(IDS, **SETTINGS).tolist()
    close = torch.corrcoef(torch.stack([m(IDS).logits[0, -1].flatten() for m in (from_file, native)]))[0, 1]
    assert close > 0.9


def test_a_model_that_is_already_loaded(tiny_folder: Path, tiny: Any) -> None:
    import ipex_llm
    from ipex_llm.transformers import AutoModelForCausalLM as Theirs

    theirs = Theirs.from_pretrained(str(tiny_folder), load_in_low_bit="sym_int4", optimize_model=True)
    model = wrap(theirs)
    assert model.engine.name == "ipex-llm"
    assert model.low_bit == "sym_int4"
    assert model.generate(IDS, lookahead=4, **SETTINGS).shape == (1, 21)
    before = theirs.generate(IDS, max_new_tokens=8, do_sample=False)
    model.generate(IDS, lookahead=4, **SETTINGS)
    assert theirs.generate(IDS, max_new_tokens=8, do_sample=False).tolist() == before.tolist()  # left as it was

    optimised = ipex_llm.optimize_model(Plain.from_pretrained(str(tiny_folder)), low_bit="sym_int4")
    assert wrap(optimised).engine.name == "ipex-llm"


def test_without_its_optimisations(tiny_folder: Path) -> None:
    model = load(tiny_folder, load_in_low_bit="sym_int4", optimize_model=False)
    assert model.generate(IDS, lookahead=4, **SETTINGS).shape == (1, 21)


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_other_families(tmp_path: Path, family: str) -> None:
    torch.manual_seed(0)
    if family == "gpt2":
        made: Any = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=128, n_embd=128, n_layer=2, n_head=4))
    else:
        made = OPTForCausalLM(
            OPTConfig(vocab_size=96, hidden_size=128, word_embed_proj_dim=128, ffn_dim=256, num_hidden_layers=2,
                      num_attention_heads=4, max_position_embeddings=128)
        )  # fmt: skip
    made.save_pretrained(tmp_path / family, safe_serialization=True)
    model = load(tmp_path / family, load_in_low_bit="sym_int4")
    assert model.engine.describe()["family"] == family
    assert model.generate(IDS, lookahead=4, adaptive=False, **SETTINGS).shape == (1, 21)


def test_what_is_refused(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LowBitFormatError, match="sym_int9.*sym_int4"):
        load(tiny_folder, load_in_low_bit="sym_int9")
    refused = {"deterministic": True, "kv_cache": "int8", "group_size": 64, "device": "xpu", "ipex": True}
    for option in ({name: value} for name, value in refused.items()):
        with pytest.raises(InputError, match="ipex-llm"):
            load(tiny_folder, **option)
    with pytest.raises(UnsupportedModelError, match="(?i)nf4.*not supported on CPU"):
        load(tiny_folder, load_in_low_bit="nf4")
    biased = write_tiny_llama(tmp_path / "biased", mlp_bias=True, **SIZES)
    with pytest.raises(UnsupportedModelError, match="biases in the MLP"):
        load(biased, load_in_low_bit="sym_int4")
    with pytest.raises(InputError, match="cannot return its weights"):
        load(tiny_folder, load_in_low_bit="sym_int4").save_low_bit(tmp_path / "out")
    monkeypatch.setenv("IPEX_LLM_COMPRESS_KV_CACHE", "1")
    with pytest.raises(EngineError, match="IPEX_LLM_COMPRESS_KV_CACHE"):
        load(tiny_folder, load_in_low_bit="sym_int4")


def test_pickled_weights_are_never_opened(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text((tiny_folder / "config.json").read_text())
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(Exception, match="safetensors"):
        load(folder, load_in_low_bit="sym_int4")
