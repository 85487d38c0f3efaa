"""Mistral 3 with eyes: which text part it has, and whether its lm_head is the embedding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import read_config
from tests.support.family_table import variants
from tests.support.tiny_families import build, write_folder

SMALL: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10, "model_type": "mistral3", "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu", "spatial_merge_size": 2, "torch_dtype": "bfloat16", "vision_feature_layer": -1,
    "text_config": {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings": 131072,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": None, "use_cache": True,
        "vocab_size": 131072,
    },
    "vision_config": {"hidden_size": 1024, "model_type": "pixtral"},
}  # fmt: skip
"""The form of Mistral Small 3.1's config."""


def read(folder: Path, raw: dict[str, Any], **inside: Any) -> dict[str, Any]:
    path = folder / "config.json"
    text = {key: value for key, value in {**raw["text_config"], **inside}.items() if value is not ...}
    path.write_text(json.dumps({**raw, "text_config": text}), encoding="utf-8")
    return read_config(path)


def test_the_text_part_is_a_mistral(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL)
    assert (config["model_type"], config["sliding_window"], config["rope_theta"]) == ("mistral", None, 1e9)
    assert (config["tie_word_embeddings"], config["dtype"]) == (False, "bfloat16")
    assert read(tmp_path, SMALL, model_type=...) == config


def test_other_parts_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"text_config.model_type is 'llama'.*'mistral' or 'ministral3'"):
        read(tmp_path, SMALL, model_type="llama")


@pytest.mark.parametrize(
    ("whole", "part", "tied"),
    [(None, None, False), (None, True, True), (None, False, False), (False, None, False), (True, True, True),
     (False, False, False), (True, None, None), (True, False, None), (False, True, None)],
)  # fmt: skip
def test_who_says_that_the_head_is_the_embedding(
    tmp_path: Path, whole: bool | None, part: bool | None, tied: bool | None
) -> None:
    """transformers 5 writes ``true`` for the whole of a model that has both; where the two differ the tensors tell."""
    config = read(tmp_path, {**SMALL, "tie_word_embeddings": whole}, tie_word_embeddings=part)
    assert config["tie_word_embeddings"] is tied


@pytest.mark.parametrize("kept", [True, False])
def test_the_tensors_tell(tmp_path: Path, kept: bool) -> None:
    """As transformers 5 has it: an lm_head that is there is used, whatever the config says."""
    write_folder(tmp_path, build("mistral3", variants("mistral3")[0]))
    raw = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    raw["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    if not kept:
        tensors = load_file(tmp_path / "model.safetensors")
        assert len([name for name in tensors if "lm_head" in name]) == 1
        left = {name: value for name, value in tensors.items() if "lm_head" not in name}
        save_file(left, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    try:
        assert checkpoint.config["tie_word_embeddings"] is not kept
        assert (checkpoint.spec.head is not None) is kept
        assert ("lm_head.weight" in checkpoint.names()) is kept
    finally:
        checkpoint.close()
