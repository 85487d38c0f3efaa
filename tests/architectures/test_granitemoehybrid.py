"""Granite 4: dense, with recurrent layers, with experts, and what is none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.checkpoints import open_checkpoint
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build

DENSE: dict[str, Any] = {
    "num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": ["attention", "attention"],
    "position_embedding_type": "rope", "shared_intermediate_size": 96, "attention_multiplier": 0.125,
    "mamba_n_heads": 8, "time_step_limit": [0.0, {"__float__": "Infinity"}],
}  # fmt: skip


def test_either_word_for_attention(tmp_path: Path) -> None:
    config = checked(tmp_path, "granitemoehybrid", **DENSE)
    other = checked(tmp_path, "granitemoehybrid", **DENSE | {"layer_types": ["full_attention"] * 2})
    assert {**config, "layer_types": None} == {**other, "layer_types": None}


@pytest.mark.parametrize("hybrid", [["attention", "mamba"], ["full_attention", "linear_attention"]])
def test_either_word_for_a_recurrent_layer(tmp_path: Path, hybrid: list[str]) -> None:
    config = checked(tmp_path, "granitemoehybrid", **DENSE | {"layer_types": hybrid})
    assert config["layer_types"] == ["full_attention", "mamba"]
    attention, recurrent = (block.mixer for block in spec_for(config).layers)
    assert isinstance(attention, Attention)
    assert isinstance(recurrent, Mamba2)
    assert (recurrent.heads, recurrent.value_dim, recurrent.norm_group) == (8, 16, 128)


def test_without_kinds_of_layers_all_are_recurrent(tmp_path: Path) -> None:
    config = checked(tmp_path, "granitemoehybrid", **DENSE | {"layer_types": None})
    assert config["layer_types"] == ["mamba"] * 2


def test_experts_beside_the_mlp(tmp_path: Path) -> None:
    """Chosen by logits, and weighted by the softmax over those chosen."""
    values = DENSE | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40}
    mixture = spec_for(checked(tmp_path, "granitemoehybrid", **values)).layers[0].feed_forward
    assert isinstance(mixture, Experts)
    assert (len(mixture.experts), mixture.used, mixture.scores, mixture.renormalise) == (5, 2, "chosen", False)
    assert mixture.shared is not None
    assert mixture.shared.up.weight.shape == (96, 64)
    assert mixture.experts[4].down.weight.hf.expert == 4


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"layer_types": ["attention"]}, ModelFormatError, "names 1 layers; there are 2"),
        ({"layer_types": [1, 2]}, ModelFormatError, "must be a list of linear_attention"),
        ({"layer_types": ["mamba", "conv"]}, ModelFormatError, "must be a list of linear_attention"),
        ({"position_embedding_type": "alibi"}, UnsupportedModelError, "position_embedding_type is 'alibi'"),
        ({"shared_intermediate_size": 0}, ModelFormatError, "shared_intermediate_size"),
        ({"num_local_experts": 4}, ModelFormatError, "num_experts_per_tok.* is 0; it must be from 1 to num_local"),
        ({"num_local_experts": 4, "num_experts_per_tok": 5}, ModelFormatError, "is 5; it must be from 1 to num_local"),
        ({"num_local_experts": 4096}, ModelFormatError, "num_local_experts"),
        ({"time_step_limit": [0.01, 0.1]}, ModelFormatError, "time_step_limit.*no agreed meaning"),
        ({"time_step_limit": [1, "x"]}, ModelFormatError, "time_step_limit"),
        ({"layer_types": ["mamba", "mamba"], "mamba_n_heads": 7}, ModelFormatError, "mamba_n_heads.* must be 128"),
        ({"layer_types": ["mamba", "mamba"], "mamba_n_groups": 3}, ModelFormatError, "does not divide 8 heads"),
        ({"layer_types": ["mamba", "mamba"], "mamba_d_state": 1 << 40}, ModelFormatError, "mamba_d_state"),
        ({"layer_types": ["mamba", "mamba"], "mamba_d_conv": 1000}, ModelFormatError, "mamba_d_conv"),
    ],
)
def test_what_cannot_be(tmp_path: Path, values: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        checked(tmp_path, "granitemoehybrid", **DENSE | values)


def test_its_files_are_granites(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the converter notes sizes of experts and recurrent layers: there are none."""
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", build("granitemoehybrid", variants("granitemoehybrid")[0])))
    file.close()
    assert file.config["model_type"] == "granite"
    assert "granite.expert_shared_feed_forward_length" in file.metadata
    assert "granite.ssm.inner_size" in file.metadata
    assert not file.unknown_keys
    assert not caplog.records
