"""Qwen3-MoE: which layers are mixtures, the windows of two releases, and what its GGUF files leave out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.architectures.spec import Experts, GatedMlp
from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.errors import ModelFormatError
from tests.support.family_configs import read_config
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build

SMALL: dict[str, Any] = {
    "model_type": "qwen3_moe", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}  # fmt: skip


def read(folder: Path, **values: Any) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(json.dumps({**SMALL, **values}), encoding="utf-8")
    return read_config(path)


@pytest.mark.parametrize(
    ("values", "mixtures"),
    [
        ({}, [0, 1, 2, 3]),
        ({"decoder_sparse_step": 2}, [1, 3]),
        ({"mlp_only_layers": [0, 3]}, [1, 2]),
        ({"mlp_only_layers": [1, 1], "decoder_sparse_step": 2}, [3]),
        ({"mlp_only_layers": None}, [0, 1, 2, 3]),
    ],
)
def test_layers_are_dense_or_mixtures(tmp_path: Path, values: dict[str, Any], mixtures: list[int]) -> None:
    spec = spec_for(read(tmp_path, **values))
    assert [i for i, block in enumerate(spec.layers) if isinstance(block.feed_forward, Experts)] == mixtures
    for block in spec.layers:
        one = block.feed_forward if isinstance(block.feed_forward, GatedMlp) else block.feed_forward.experts[5]
        assert one.up.weight.shape == ((32 if isinstance(block.feed_forward, Experts) else 96), 64)


def test_a_file_without_the_experts_size_has_it_by_rule(tmp_path: Path) -> None:
    model = build("qwen3_moe", variants("qwen3_moe")[0])
    used = model.config.num_experts_per_tok
    file = write_gguf(tmp_path / "m.gguf", model)
    data = file.read_bytes()
    key = b"qwen3moe.expert_feed_forward_length"
    assert data.count(key) == 1
    file.write_bytes(data.replace(key, b"qwen3moe.expert_feed_forward_longth"))
    with pytest.raises(ModelFormatError, match=rf"the metadata imply \[5, {96 // used}, 64\]"):
        GgufCheckpoint(file)
