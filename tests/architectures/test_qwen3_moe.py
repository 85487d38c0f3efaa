"""Qwen3-MoE: which layers are mixtures, the windows of two releases, and what its GGUF files leave out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.architectures.spec import Experts, GatedMlp
from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
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


@pytest.mark.parametrize("normalised", [False, True])
def test_weights_of_experts_are_normalised_where_the_config_says_so(tmp_path: Path, normalised: bool) -> None:
    mlp = spec_for(read(tmp_path, norm_topk_prob=normalised)).layers[0].feed_forward
    assert isinstance(mlp, Experts)
    assert (mlp.scores, mlp.renormalise) == ("all", normalised)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"mlp_only_layers": [4]}, "mlp_only_layers"),
        ({"mlp_only_layers": [-1]}, "mlp_only_layers"),
        ({"mlp_only_layers": [True]}, "mlp_only_layers"),
        ({"mlp_only_layers": "1"}, "mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"num_experts": 0}, "num_experts"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
    ],
)
def test_values_that_cannot_be_are_named(tmp_path: Path, values: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        read(tmp_path, **values)
    assert caught.value.field == field
    assert caught.value.offset == (tmp_path / "config.json").read_text().index(f'"{field}"') + len(f'"{field}": ')


def test_a_window_is_for_all_layers_or_refused(tmp_path: Path) -> None:
    """The first releases of transformers gave it to the layers from ``max_window_layers`` on, later ones to all."""
    window = {"use_sliding_window": True, "sliding_window": 8}
    assert {block.mixer.window for block in spec_for(read(tmp_path, **window)).layers} == {8}
    off = read(tmp_path, sliding_window=8, max_window_layers=2)
    assert {block.mixer.window for block in spec_for(off).layers} == {None}
    assert read(tmp_path, **window, max_window_layers=0)["sliding_window"] == 8
    with pytest.raises(UnsupportedModelError, match="max_window_layers is 2"):
        read(tmp_path, **window, max_window_layers=2)


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
