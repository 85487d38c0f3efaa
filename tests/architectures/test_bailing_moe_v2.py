"""Ling and Ring 2.0: parts of a fused matrix, groups of experts, blocks for drafting, sizes given in two ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ipex_lookahead.checkpoints import GgufCheckpoint, open_checkpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened
from tests.support.family_table import FAMILIES, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, write_folder

BASE = FAMILIES["bailing_moe_v2"].base
PLAIN, SHARED, _ = variants("bailing_moe_v2")


def test_q_k_and_v_are_rows_of_one_matrix_as_they_are(tmp_path: Path) -> None:
    """Neither file has them in pairs: a head's halves rotate against each other."""
    model = build("bailing_moe_v2", PLAIN)
    whole = model.state_dict()["model.layers.1.attention.query_key_value.weight"].numpy()
    for checkpoint in (
        open_checkpoint(write_folder(tmp_path / "folder", model)),
        GgufCheckpoint(write_gguf(tmp_path / "m.gguf", model)),
    ):
        names = (f"model.layers.1.attention.{x}_proj.weight" for x in "qkv")
        assert np.concatenate([checkpoint.read(name).codes for name in names]).tobytes() == whole.tobytes()
        checkpoint.close()


def test_a_file_shows_the_number_of_shared_experts(tmp_path: Path) -> None:
    """One key is their number, another the size of one in some files and of all in others."""
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("bailing_moe_v2", SHARED)))
    file.close()
    assert file.config["num_shared_experts"] == 2


def test_blocks_for_drafting_at_the_end_of_a_file_are_read_past(tmp_path: Path) -> None:
    def more(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys["bailingmoe2.block_count"].value = 4
        keys["bailingmoe2.nextn_predict_layers"] = gguf.GGUFValue(1, gguf.GGUFValueType.UINT32)
        tensors.update({name.replace("blk.2.", "blk.3."): one for name, one in tensors.items() if "blk.2." in name})
        tensors["blk.3.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)

    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("bailing_moe_v2", PLAIN), change=more))
    file.close()
    assert len(file.spec.layers) == 3
    assert set(file.names()) == {tensor.name for tensor in file.spec.tensors()}


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"norm_topk_prob": False}, UnsupportedModelError, "norm_topk_prob is False, which keeps the sum"),
        ({"score_function": "softmax"}, UnsupportedModelError, "score_function is 'softmax'"),
        ({"use_bias": True}, UnsupportedModelError, "use_bias is True"),
        ({"use_qkv_bias": True}, UnsupportedModelError, "use_qkv_bias is True"),
        ({"norm_head": True}, UnsupportedModelError, "norm_head is True"),
        ({"use_sliding_window": True}, UnsupportedModelError, "use_sliding_window is True"),
        ({"n_group": 3}, ModelFormatError, "n_group at byte .* is 3, which does not divide 8"),
        ({"topk_group": 5}, ModelFormatError, "topk_group at byte .* is 5"),
        ({"topk_group": 1, "num_experts_per_tok": 3}, ModelFormatError, "num_experts_per_tok at byte .* is 3"),
    ],
)
def test_values_that_are_refused(tmp_path: Path, values: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        checked(tmp_path, "bailing_moe_v2", **{**BASE, **values})


def test_another_router_of_a_file_is_refused(tmp_path: Path) -> None:
    def change(keys: dict[str, Any], _: dict[str, Any]) -> None:
        keys["bailingmoe2.expert_gating_func"].value = 1

    with pytest.raises(UnsupportedModelError, match="expert_gating_func is 1"):
        GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("bailing_moe_v2", PLAIN), change=change))
    assert opened(tmp_path, "bailing_moe_v2", {}).config["routed_scaling_factor"] == 2.5
