"""Gemma 4 12B: keys that it lacks, the tensors of its other parts, and the tokens that its files suppress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints import GgufCheckpoint, open_checkpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, windows
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, write_folder

_SMALL = {"head_dim": 16, "global_head_dim": 32, "vocab_size": 512}


@pytest.mark.parametrize("model_type", ["gemma4_unified", "gemma4_unified_text"])
def test_absent_keys_are_not_those_of_gemma4_text(tmp_path: Path, model_type: str) -> None:
    """Per-layer embeddings of 256 values are that family's default; here there are none, nor experts."""
    values: dict[str, Any] = {**_SMALL, "num_hidden_layers": 7}
    if model_type == "gemma4_unified":
        values = {"text_config": values}
    config = checked(tmp_path, model_type, "max_position_embeddings", **values)
    assert config["model_type"] == "gemma4_unified_text"
    spec = spec_for(config)
    assert (spec.per_layer, spec.mixtures, spec.max_context) == (None, (), 262144)
    assert windows(spec) == [1024] * 5 + [None, None]  # the last layer sees all, whatever the pattern


@pytest.mark.parametrize("key", ["hidden_size_per_layer_input", "num_experts", "top_k_experts"])
def test_what_the_family_lacks_is_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{key} is 4, which adds"):
        checked(tmp_path, "gemma4_unified_text", **_SMALL, **{key: 4})


def test_tensors_of_vision_and_audio_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the names of the first release (``vision_embedder``) as well."""
    folder = write_folder(tmp_path, build("gemma4_unified", variants("gemma4_unified")[0]))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    assert any(".embed_vision." in name for name in tensors)
    assert any(".embed_audio." in name for name in tensors)
    save_file({**tensors, "model.vision_embedder.pos_norm.weight": torch.ones(64)}, file, {"format": "pt"})
    checkpoint = open_checkpoint(folder)
    checkpoint.close()
    assert not caplog.records
    assert len(checkpoint.names()) == len(list(checkpoint.spec.own_tensors()))


def test_a_gguf_file_names_tokens_that_are_never_said(tmp_path: Path) -> None:
    """It is a list of int32 under the tokenizer's keys; ids beyond the vocabulary are left out."""
    model = build("gemma4_unified_text", variants("gemma4_unified_text")[0])
    for tokens, expected in (([7, 9, 2000, -1], [7, 9]), ([4000], None)):
        metadata = {"tokenizer.ggml.suppress_tokens": tokens}
        checkpoint = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", model, metadata=metadata))
        checkpoint.close()
        assert checkpoint.config["model_type"] == "gemma4_text"
        assert checkpoint.generation_config.get("suppress_tokens") == expected
    path = write_gguf(tmp_path / "m.gguf", model, metadata={"tokenizer.ggml.suppress_tokens": [0.5]})
    with pytest.raises(ModelFormatError, match=r"suppress_tokens.*must be a list of token ids"):
        GgufCheckpoint(path)
