"""GLM-4: four norms a block, half of a head rotated, and gate and up in one matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import opened, spec_of


def test_half_of_a_head_is_rotated_unless_said_otherwise(tmp_path: Path) -> None:
    for values, pairs in (({}, 4), ({"partial_rotary_factor": 1.0}, 8), ({"partial_rotary_factor": 0.25}, 2)):
        rope = spec_of(tmp_path, "glm4", head_dim=16, **values).layers[0].mixer.rope
        assert rope.interleaved
        assert len(rope.frequencies) == pairs


def test_norms_stand_before_and_behind(tmp_path: Path) -> None:
    block = spec_of(tmp_path, "glm4", head_dim=16).layers[0]
    norms = (block.mixer_norm, block.mixer_after, block.feed_forward_norm, block.feed_forward_after)
    assert [norm.weight.gguf.name for norm in norms] == [
        "blk.0.attn_norm.weight", "blk.0.post_attention_norm.weight", "blk.0.ffn_norm.weight",
        "blk.0.post_ffw_norm.weight",
    ]  # fmt: skip
    gate, up = block.feed_forward.gate.weight, block.feed_forward.up.weight
    assert (gate.hf.name, gate.hf.rows) == ("model.layers.0.mlp.gate_up_proj.weight", (0, 1))
    assert (up.gguf.name, up.gguf.rows) == ("blk.0.ffn_up.weight", (96, 1))


def test_a_file_of_a_model_that_sees_or_predicts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="has glm4.rope.dimension_sections"):
        opened(tmp_path, "glm4", {"glm4.rope.dimension_sections": [2, 2, 0, 0]})
    with pytest.raises(UnsupportedModelError, match="glm4.nextn_predict_layers is 1"):
        opened(tmp_path, "glm4", {"glm4.nextn_predict_layers": 1})
