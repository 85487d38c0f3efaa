"""From a path to a running model: formats, synonyms, ignored arguments, round trips, and errors that name the mend."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, EngineError, InputError, LowBitFormatError, ModelFormatError
from ipex_lookahead.errors import UnsupportedModelError
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

IDS = torch.tensor([[5, 9, 33, 2, 17, 60]])


def load(path: Path, **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, threads=1, progress=False, **kwargs)


def logits(model: Any) -> bytes:
    values: bytes = model(IDS).logits.numpy().tobytes()
    return values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model", seed=3)


@pytest.mark.parametrize("low_bit", ["sym_int4", "sym_int8", "bf16", "fp16"])
@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("mixed_precision", [False, True])
@pytest.mark.rotating(6)
def test_a_saved_model_computes_the_same_bytes(
    folder: Path, tmp_path: Path, low_bit: str, group_size: int, mixed_precision: bool
) -> None:
    model = load(folder, load_in_low_bit=low_bit, group_size=group_size, mixed_precision=mixed_precision)
    assert model.low_bit == low_bit
    model.save_low_bit(tmp_path / "saved")
    shutil.rmtree(folder)  # nothing of the original is needed any more
    again = AutoModelForCausalLM.load_low_bit(tmp_path / "saved", threads=1, progress=False)
    assert again.low_bit == low_bit
    assert logits(again) == logits(model)


@pytest.mark.parametrize("scaling", [None, "llama3"])
@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q8_0", "F16"])
@pytest.mark.rotating(4)
def test_a_gguf_file_survives_a_save(tmp_path: Path, quant: str, scaling: str | None) -> None:
    rope = scaling and {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    file = write_tiny_gguf(tmp_path / "model.gguf", quant=quant, seed=3, rope_scaling=rope)
    model, tokenizer = AutoModelForCausalLM.from_gguf(file, threads=1, progress=False)
    assert tokenizer is None or tokenizer is model.tokenizer
    model.save_low_bit(tmp_path / "saved")
    assert logits(AutoModelForCausalLM.load_low_bit(tmp_path / "saved", threads=1, progress=False)) == logits(model)


def test_load_in_4bit_is_sym_int4(folder: Path) -> None:
    assert logits(load(folder, load_in_4bit=True)) == logits(load(folder, load_in_low_bit="sym_int4"))
    with pytest.raises(InputError, match="load_in_4bit"):
        load(folder, load_in_4bit=True, load_in_low_bit="sym_int8")


def test_load_in_8bit_is_sym_int8(folder: Path) -> None:
    assert load(folder, load_in_8bit=True).low_bit == "sym_int8"


def test_a_config_and_the_hubs_arguments_are_honoured(folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    assert load(folder.parent, subfolder="model", config=config, revision="main", token=False).low_bit == "fp32"
    config.rms_norm_eps = 1e-3
    with pytest.raises(InputError, match="rms_norm_eps"):
        load(folder, config=config)
    with pytest.raises(InputError, match="revision='v3'"):
        load(folder, revision="v3")


def test_without_a_format_the_file_decides(folder: Path) -> None:
    assert load(folder).low_bit == "fp32"
    assert load(write_tiny_llama(folder.parent / "half", dtype="bfloat16")).low_bit == "bf16"


def test_low_bit_weights_in_the_file_may_be_quantised_anew(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "model.gguf", quant="Q8_0")
    model = load(file, load_in_low_bit="sym_int4")
    assert model.low_bit == "sym_int4"
    assert np.isfinite(model(IDS).logits.numpy()).all()


def test_arguments_of_other_libraries_change_nothing(folder: Path) -> None:
    ours = load(folder, load_in_low_bit="sym_int4")
    theirs = load(
        folder,
        load_in_low_bit="sym_int4",
        optimize_model=True,
        trust_remote_code=True,
        use_cache=True,
        cpu_embedding=True,
    )
    assert logits(ours) == logits(theirs)
    with pytest.raises(InputError, match="load_in_5bit.*did you mean 'load_in_[48]bit'"):
        load(folder, load_in_5bit=True)


def test_modules_to_not_convert_stay_as_they_were(folder: Path) -> None:
    model = load(folder, load_in_low_bit="sym_int4", modules_to_not_convert=["lm_head", "down_proj"])
    formats = {name: w.format for name, w in model.engine.weights()}
    assert formats["model.layers.0.mlp.down_proj.weight"] == "fp32"
    assert formats["model.layers.0.mlp.up_proj.weight"] == "sym_int4"
    with pytest.raises(InputError, match="modules_to_not_convert"):
        load(folder, load_in_low_bit="sym_int4", modules_to_not_convert="lm_head")


def test_the_drop_in_module_is_the_same_class() -> None:
    from ipex_lookahead import transformers

    assert transformers.AutoModelForCausalLM is AutoModelForCausalLM


def test_nothing_of_a_checkpoints_code_is_run(folder: Path) -> None:
    (folder / "modeling_evil.py").write_text("raise SystemExit('this must never run')")
    config = folder / "config.json"
    config.write_text(
        config.read_text().replace("{", '{"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"},', 1)
    )
    load(folder, trust_remote_code=True)


def test_bad_requests_say_what_to_do(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such|is no|neither"):
        load(tmp_path / "nothing" / "here")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFormatError, match="config.json"):
        load(tmp_path / "empty")
    with pytest.raises(LowBitFormatError, match="'sym_int9'.*sym_int4"):
        load(folder, load_in_low_bit="sym_int9")
    with pytest.raises(LowBitFormatError, match="group size 48"):
        load(folder, load_in_low_bit="sym_int4", group_size=48)
    with pytest.raises(InputError, match="engine is 'gpu'.*native"):
        load(folder, engine="gpu")
    with pytest.raises(InputError, match="threads"):
        AutoModelForCausalLM.from_pretrained(folder, threads=0)
    with pytest.raises(InputError, match="no such folder"):
        AutoModelForCausalLM.load_low_bit(tmp_path / "none")
    with pytest.raises(InputError, match="was not written by save_low_bit") as error:
        AutoModelForCausalLM.load_low_bit(folder)
    assert "load_in_low_bit" in error.value.hint
    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", "avx9000")
    with pytest.raises(EngineError, match="avx9000"):
        load(folder)


def test_an_unknown_architecture_is_named(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"model_type": "llama"', '"model_type": "mamba"'))
    with pytest.raises(UnsupportedModelError, match="mamba"):
        load(folder)


def test_the_trained_models_tell_stories(shared: Path) -> None:
    """Two trained Llamas whose sizes no block divides: what they write must be words of their corpus."""
    for name, start, needs in (("stories260K", "Once upon a time", " the "), ("babyllama-tok105", "Once", "e")):
        for low_bit in (None, "sym_int8"):
            model = load(shared / "models" / name, load_in_low_bit=low_bit)
            ids = model.tokenizer(start, return_tensors="pt")["input_ids"]
            out = model.generate(ids, max_new_tokens=80, do_sample=False)
            story = model.tokenizer.decode(out[0], skip_special_tokens=True)
            assert story.startswith(start)
            assert needs in story[len(start) :]
            assert (model.generate(ids, max_new_tokens=80, do_sample=False, lookahead=4) == out).all()
