"""Granite 4 (dense): what makes it one, and what a hybrid or a mixture is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked
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


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"layer_types": ["attention", "mamba"]}, UnsupportedModelError, "'mamba' is no attention"),
        ({"layer_types": ["linear_attention"] * 2}, UnsupportedModelError, "'linear_attention' is no attention"),
        ({"layer_types": None}, UnsupportedModelError, "layer_types is not there, so all layers are recurrent"),
        (
            {"num_local_experts": 8},
            UnsupportedModelError,
            "num_local_experts is 8, which has experts beside a shared MLP",
        ),
        ({"num_local_experts": None}, UnsupportedModelError, "num_local_experts is 8"),  # as transformers takes it
        ({"layer_types": ["attention"]}, ModelFormatError, "names 1 layers; there are 2"),
        ({"layer_types": [1, 2]}, ModelFormatError, "must be a list of kinds of layers"),
        ({"position_embedding_type": "alibi"}, UnsupportedModelError, "position_embedding_type is 'alibi'"),
        ({"shared_intermediate_size": 0}, ModelFormatError, "shared_intermediate_size"),
    ],
)
def test_what_is_no_dense_one(tmp_path: Path, values: dict[str, Any], error: type[Exception], words: str) -> None:
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
