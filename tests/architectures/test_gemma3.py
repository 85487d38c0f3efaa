"""Gemma 3 with eyes: the text part, with what its config leaves out; the rest is passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import read_config
from tests.support.family_engines import in_chunks, load
from tests.support.family_table import Variant, variants
from tests.support.tiny_families import build, config_of, distance, logits, text, with_weights, write_folder

OF_THE_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "torch_dtype": "bfloat16",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}  # fmt: skip
"""As its checkpoint has it: what is as transformers has it is not there."""


def read(folder: Path, raw: dict[str, Any], **inside: Any) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(json.dumps({**raw, "text_config": {**raw["text_config"], **inside}}), encoding="utf-8")
    return read_config(path)


def test_a_sparse_config_is_filled_in(tmp_path: Path) -> None:
    config = read(tmp_path, OF_THE_4B)
    assert config["model_type"] == "gemma3_text"
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (8, 4, 256)
    assert (config["vocab_size"], config["max_position_embeddings"], config["tie_word_embeddings"]) == (
        262208,
        131072,
        True,
    )
    assert (config["eos_token_id"], config["bos_token_id"], config["dtype"]) == ([1, 106], 2, "bfloat16")
    spec = spec_for(config)
    assert [block.mixer.window for block in spec.layers] == ([1024] * 5 + [None]) * 5 + [1024] * 4
    assert spec.layers[0].mixer.scale == 1 / 16
    assert read(tmp_path, OF_THE_4B, eos_token_id=1) == config  # the whole's word goes before the part's


@pytest.mark.parametrize(
    ("raw", "inside", "error", "words"),
    [
        ({"tie_word_embeddings": "yes"}, {}, ModelFormatError, "tie_word_embeddings"),
        ({"quantization_config": {"quant_method": "fp8"}}, {}, UnsupportedModelError, "already quantized"),
        ({}, {"quantization_config": {"quant_method": "fp8"}}, UnsupportedModelError, "already quantized"),
        ({}, {"model_type": "gemma2"}, UnsupportedModelError, "model_type is 'gemma2'.*'gemma3_text'"),
        ({}, {"hidden_size": "x"}, ModelFormatError, r"text_config.hidden_size at byte \d+"),
        ({}, {"layer_types": ["full_attention"]}, ModelFormatError, "text_config.layer_types.*names 1 layers"),
    ],
)  # fmt: skip
def test_what_cannot_be_run(
    tmp_path: Path, raw: dict[str, Any], inside: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        read(tmp_path, {**OF_THE_4B, **raw}, **inside)


def test_a_text_config_must_be_an_object(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for value in (None, [], "gemma3_text"):
        path.write_text(json.dumps({**OF_THE_4B, "text_config": value}), encoding="utf-8")
        with pytest.raises(ModelFormatError, match="text_config.*must be an object"):
            read_config(path)


def test_the_other_parts_are_passed_over_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(tmp_path, build("gemma3", variants("gemma3")[0]))
    checkpoint = open_checkpoint(tmp_path)
    names = list(checkpoint.names())
    checkpoint.close()
    assert names == [tensor.name for tensor in checkpoint.spec.tensors()]
    assert not caplog.records
    assert checkpoint.config["model_type"] == checkpoint.spec.model_type == "gemma3_text"


def test_logits_are_as_long_as_transformers_class_leaves_them(tmp_path: Path) -> None:
    """It caps none, whatever ``final_logit_softcapping`` says; the class for text alone does."""
    plain = variants("gemma3")[0]
    inside = config_of("gemma3", plain).text_config.to_dict()
    capped = Variant("capped", {"text_config": {**inside, "final_logit_softcapping": 0.5}})
    model = with_weights(config_of("gemma3", capped))
    ids = text(model)
    expected = logits(model, ids)
    assert np.abs(expected).max() > 0.5
    engine = load(write_folder(tmp_path, model))
    assert distance(in_chunks(engine, ids, [len(ids)]), expected) < 1e-2


def test_one_weight_under_two_names_is_an_error(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_folder(tmp_path, build("gemma3", variants("gemma3")[0]))
    tensors = load_file(tmp_path / "model.safetensors")
    norm = next(tensors[name] for name in tensors if name.endswith("language_model.model.norm.weight"))
    save_file({**tensors, "model.language_model.norm.weight": norm.clone()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match="under another name of model.norm.weight"):
        open_checkpoint(tmp_path)
