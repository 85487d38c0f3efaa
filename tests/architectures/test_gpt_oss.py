"""gpt-oss: experts in MXFP4 from both kinds of file, rope that is yarn unless the config says plain, windows, sinks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ipex_lookahead.checkpoints import Checkpoint, GgufCheckpoint, open_checkpoint
from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.hf_config import transformers_config
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import read_config
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.mxfp4 import rounded, write_mxfp4_folder
from tests.support.tiny_families import build, logits, text, write_folder

PLAIN = variants("gpt_oss")[0]
SMALL: dict[str, Any] = {
    "model_type": "gpt_oss", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "num_local_experts": 6,
    "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return rounded(build("gpt_oss", PLAIN))


@pytest.fixture
def folder(tmp_path: Path, model: Any) -> Path:
    return write_mxfp4_folder(tmp_path / "folder", model)


def read(folder: Path, **values: Any) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(json.dumps({**SMALL, **values}), encoding="utf-8")
    return read_config(path)


def native_logits(checkpoint: Checkpoint, ids: Any) -> Any:
    engine = NativeEngine.load(checkpoint, checkpoint.spec, WeightPlan(), threads=2)
    return engine.forward(chain(engine.new_cache(), ids, OutputRequest(logits=True))).logits


def test_mxfp4_is_kept_as_it_is(tmp_path: Path, folder: Path, model: Any) -> None:
    """The same codes from a folder and from a GGUF file; their values are the model's; steps give the same bits."""
    file = write_gguf(tmp_path / "m.gguf", model, experts="MXFP4")
    ids = text(model)
    expected = logits(model, ids)
    one, two = open_checkpoint(folder), GgufCheckpoint(file)
    assert {key: one.config[key] for key in two.config} == two.config
    for tensor in one.spec.tensors():
        first, second = one.read(tensor.name), two.read(tensor.name)
        experts = tensor.is_matrix and ".experts." in tensor.name
        assert one.info(tensor.name).format == first.format == second.format == ("mxfp4" if experts else "fp32")
        assert first.codes.tobytes() == second.codes.tobytes(), tensor.name
    found = native_logits(one, ids)
    assert found.tobytes() == native_logits(two, ids).tobytes()
    off = np.abs(found - expected).max(axis=1) / expected.std()  # activations are int8, which may turn a router
    assert np.median(off) < 0.15
    one.close()
    two.close()


def test_a_scale_that_is_no_number_is_found_where_it_is(folder: Path) -> None:
    name, at = "model.layers.1.mlp.experts.gate_up_proj_scales", (2, 7, 1)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[name][at] = 255
    save_file(tensors, path, {"format": "pt"})
    checkpoint = open_checkpoint(folder)
    checkpoint.read("model.layers.1.mlp.experts.2.gate_proj.weight")  # even rows
    with pytest.raises(ModelFormatError, match="NaN") as caught:
        checkpoint.read("model.layers.1.mlp.experts.2.up_proj.weight")
    assert caught.value.field == name
    data = path.read_bytes()
    assert caught.value.offset is not None
    assert data[caught.value.offset] == 255
    index = int(np.ravel_multi_index(at, tensors[name].shape))
    assert data[caught.value.offset - index :][: tensors[name].size] == tensors[name].tobytes()
    checkpoint.close()


@pytest.mark.parametrize("part", ["blocks", "scales"])
@pytest.mark.parametrize("wrong", ["missing", "dtype", "shape"])
def test_blocks_and_scales_that_do_not_fit(folder: Path, part: str, wrong: str) -> None:
    name = f"model.layers.0.mlp.experts.down_proj_{part}"
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if wrong == "missing":
        del tensors[name]
    else:
        tensors[name] = tensors[name].astype(np.uint16) if wrong == "dtype" else tensors[name][:, :-1].copy()
    save_file(tensors, path, {"format": "pt"})
    checkpoint = open_checkpoint(folder)
    with pytest.raises(ModelFormatError) as caught:
        NativeEngine.load(checkpoint, checkpoint.spec, WeightPlan())
    assert caught.value.field == name
    checkpoint.close()


def test_inputs_that_no_block_divides(tmp_path: Path) -> None:
    odd = next(variant for variant in variants("gpt_oss") if "odd" in variant.name)
    folder = write_folder(tmp_path, build("gpt_oss", odd))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.experts.down_proj"
    experts, n_in, n_out = tensors.pop(name).shape
    tensors[f"{name}_blocks"] = np.zeros((experts, n_out, -(-n_in // 32), 16), np.uint8)
    tensors[f"{name}_scales"] = np.zeros((experts, n_out, -(-n_in // 32)), np.uint8)
    save_file(tensors, path, {"format": "pt"})
    checkpoint = open_checkpoint(folder)
    with pytest.raises(ModelFormatError, match=f"the config implies {n_in} inputs"):
        checkpoint.info("model.layers.0.mlp.experts.0.down_proj.weight")
    checkpoint.close()


@pytest.mark.parametrize("value", [{"quant_method": "gptq"}, {"quant_method": 4}, {}, "mxfp4 "])
def test_other_quantised_weights_are_refused(tmp_path: Path, value: Any) -> None:
    assert "quantization_config" not in read(tmp_path, quantization_config={"quant_method": "mxfp4", "x": 1})
    with pytest.raises(UnsupportedModelError, match="quant_method"):
        read(tmp_path, quantization_config=value)


def test_rope_is_yarn_unless_plain_rope_is_asked_for(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config["rope_scaling"] == {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    plain = read(tmp_path, rope_scaling={"rope_type": "default"})
    assert plain["rope_scaling"] == {"rope_type": "default"}
    (tmp_path / "config.json").write_text(json.dumps(plain), encoding="utf-8")
    assert read_config(tmp_path / "config.json") == plain, "as save_low_bit writes it"
    for one in (config, plain):
        theirs = transformers_config(one, tmp_path).rope_parameters
        assert (theirs["rope_type"], theirs["rope_theta"]) == (one["rope_scaling"]["rope_type"], 150000.0)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"layer_types": ["full_attention"] * 5}, "layer_types"),
        ({"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4, "sliding_window": None}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"swiglu_limit": 0.0}, "swiglu_limit"),
        ({"num_local_experts": 0}, "num_local_experts"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok"),
    ],
)
def test_values_that_cannot_be_are_named(tmp_path: Path, values: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        read(tmp_path, **values)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"gpt-oss.rope.freq_base_swa": 10000.0}, "freq_base_swa is 10000"),
        ({"gpt-oss.attention.sliding_window_pattern": 3}, "sliding_window_pattern is 3"),
    ],
)
def test_what_a_file_has_of_its_own_is_refused(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    model = build("gpt_oss", PLAIN)
    same = {"gpt-oss.rope.freq_base_swa": 150000.0, "gpt-oss.attention.sliding_window_pattern": 2}
    GgufCheckpoint(write_gguf(tmp_path / "same.gguf", model, metadata=same)).close()
    with pytest.raises(UnsupportedModelError, match=words):
        GgufCheckpoint(write_gguf(tmp_path / "m.gguf", model, metadata=keys))
