"""Qwen3-VL with experts: folders have fused experts, usually with inputs before outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.errors import ModelFormatError
from tests.support.family_configs import checked
from tests.support.family_table import SIZES, Variant, variants
from tests.support.tiny_families import build, config_of, with_weights, write_folder

_TEXT = {**variants("qwen3_vl_moe")[1].values["text_config"], "tie_word_embeddings": False}


def transpose(folder: Path) -> Path:
    """Give the experts of a folder the layout of the hub's: inputs before outputs."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if ".mlp.experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, file, {"format": "pt"})
    return folder


def weights(folder: Path) -> dict[str, bytes]:
    checkpoint = open_checkpoint(folder)
    found = {name: np.ascontiguousarray(checkpoint.read(name).codes).tobytes() for name in checkpoint.names()}
    checkpoint.close()
    return found


@pytest.mark.parametrize("inner", [48, 32], ids=["", "square"])
def test_the_shape_decides_about_the_layout_of_experts(tmp_path: Path, inner: int) -> None:
    """With experts of half the hidden size, gate and up are square, and the shape of down decides."""
    values = {"text_config": {**_TEXT, "moe_intermediate_size": inner}}
    model = with_weights(config_of("qwen3_vl_moe", Variant("", values)))
    expected = weights(write_folder(tmp_path / "plain", model))
    assert weights(transpose(write_folder(tmp_path / "transposed", model))) == expected
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    values_of = model.model.language_model.layers[1].mlp.experts.gate_up_proj[3, inner:]
    assert expected[name] == values_of.detach().numpy().tobytes()


def test_a_layout_of_neither_kind_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, build("qwen3_vl_moe", variants("qwen3_vl_moe")[0]))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.language_model.layers.1.mlp.experts.down_proj"
    save_file({**tensors, name: tensors[name].reshape(5, 32, -1).contiguous()}, file, {"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"down_proj.*has shape \[5, 32, 96\]"):
        SafetensorsCheckpoint(folder).read("model.layers.1.mlp.experts.0.down_proj.weight")


def test_experts_weights_are_always_normalized_and_there_is_no_window(tmp_path: Path) -> None:
    """Whatever the config says: transformers' class reads neither key."""
    values = {**SIZES, "num_experts": 5, "norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 9}
    config = checked(tmp_path, "qwen3_vl_moe", text_config={**values, "model_type": "qwen3_vl_moe_text"})
    assert (config["norm_topk_prob"], config["sliding_window"], config["num_experts_per_tok"]) == (True, None, 4)
    assert config["model_type"] == "qwen3_moe"
