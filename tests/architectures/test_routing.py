"""Mixtures as DeepSeek and GLM have them: groups, shared experts, dense layers; blocks for drafting, read past."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.architectures.spec import Experts, GatedMlp
from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked
from tests.support.family_engines import in_chunks, load
from tests.support.family_table import FAMILIES, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, text, write_folder

DRAFTING = ["glm4_moe", "deepseek_v3"]


def read(folder: Path, model_type: str, **values: Any) -> dict[str, Any]:
    return checked(folder, model_type, **{**FAMILIES[model_type].base, **values})


def mixture(folder: Path, model_type: str, **values: Any) -> Experts:
    found = spec_for(read(folder, model_type, **values)).layers[-1].feed_forward
    assert isinstance(found, Experts)
    return found


def test_the_routers_of_three_families(tmp_path: Path) -> None:
    groups = {"n_group": 4, "topk_group": 2}
    v2 = mixture(tmp_path, "deepseek_v2", **groups, topk_method="group_limited_greedy", first_k_dense_replace=1)
    assert (v2.scores, v2.groups, v2.groups_used, v2.group_best, v2.renormalise) == ("all", 4, 2, 1, False)
    assert v2.correction is None
    greedy = mixture(tmp_path, "deepseek_v2", **groups, topk_method="greedy", first_k_dense_replace=1)
    assert (greedy.groups, greedy.groups_used) == (1, 1)
    for model_type in ("deepseek_v3", "glm4_moe"):
        v3 = mixture(tmp_path, model_type, **groups, first_k_dense_replace=1, routed_scaling_factor=2.5)
        assert (v3.scores, v3.groups, v3.groups_used, v3.group_best, v3.scale) == ("sigmoid", 4, 2, 2, 2.5)
        assert v3.correction is not None
        assert v3.correction.gguf.name == "blk.1.exp_probs_b.bias"


def test_shared_experts_are_one_of_their_size_together(tmp_path: Path) -> None:
    shared = mixture(tmp_path, "deepseek_v3", n_shared_experts=3, first_k_dense_replace=0).shared
    assert shared is not None
    assert shared.up.weight.shape == (3 * 40, 64)
    assert mixture(tmp_path, "deepseek_v3", n_shared_experts=0, first_k_dense_replace=0).shared is None


def test_the_first_layers_are_dense(tmp_path: Path) -> None:
    for first in (0, 1, 2):
        layers = spec_for(read(tmp_path, "glm4_moe", first_k_dense_replace=first)).layers
        assert [isinstance(one.feed_forward, GatedMlp) for one in layers] == [i < first for i in range(2)]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"n_group": 3}, "n_group"),
        ({"n_group": 4, "topk_group": 5}, "topk_group"),
        ({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "num_experts_per_tok"),
        ({"n_routed_experts": 1024, "num_hidden_layers": 100, "n_group": 1, "topk_group": 1}, "n_routed_experts"),
        ({"num_local_experts": 7}, "num_local_experts"),
        ({"num_nextn_predict_layers": 1000}, "num_nextn_predict_layers"),
    ],
)
def test_numbers_that_do_not_fit_are_named(tmp_path: Path, values: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        read(tmp_path, "deepseek_v3", **{"n_routed_experts": 8, **values})
    assert caught.value.field == field


def test_v2_does_not_normalise_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="norm_topk_prob is True"):
        read(tmp_path, "deepseek_v2", norm_topk_prob=True)


@pytest.mark.parametrize("model_type", DRAFTING)
def test_a_folders_blocks_for_drafting_are_read_past_and_said(
    tmp_path: Path, model_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(model_type, variants(model_type)[0])
    folder = write_folder(tmp_path / "folder", model)
    ids = text(model)
    expected = in_chunks(load(folder), ids, [57])
    file = folder / "model.safetensors"
    tensors = load_file(file)
    more = {
        name.replace("layers.1.", "layers.2."): values.clone()
        for name, values in tensors.items()
        if "layers.1." in name
    }
    more["model.layers.2.eh_proj.weight"] = tensors["lm_head.weight"].new_zeros(64, 128)
    save_file(tensors | more, file, {"format": "pt"})
    path = folder / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key != "num_mtp_layers"}
    path.write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    caplog.clear()
    assert np.array_equal(in_chunks(load(folder), ids, [57]), expected)
    assert "ignoring tensors" not in caplog.text
    assert describe(folder)["drafting"] == f"{len(more)} tensors of blocks for drafting (MTP), which are read past"


@pytest.mark.parametrize("model_type", DRAFTING)
def test_a_gguf_files_blocks_for_drafting_are_read_past_and_said(tmp_path: Path, model_type: str) -> None:
    model = build(model_type, variants(model_type)[0])
    ids, prefix = text(model), "glm4moe" if model_type == "glm4_moe" else "deepseek2"

    def with_block(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys[f"{prefix}.block_count"].value = 3
        keys[f"{prefix}.nextn_predict_layers"] = gguf.GGUFValue(1, gguf.GGUFValueType.UINT32)
        tensors.update({name.replace("blk.1.", "blk.2."): one for name, one in tensors.items() if "blk.1." in name})
        tensors["blk.2.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)

    plain = write_gguf(tmp_path / "plain.gguf", model)
    more = write_gguf(tmp_path / "more.gguf", model, change=with_block)
    assert np.array_equal(in_chunks(load(more), ids, [57]), in_chunks(load(plain), ids, [57]))
    assert "not used" in describe(more)["drafting"]
    assert "drafting" not in describe(plain)

    def too_many(keys: dict[str, Any], _: dict[str, Any]) -> None:
        keys[f"{prefix}.nextn_predict_layers"] = gguf.GGUFValue(2, gguf.GGUFValueType.UINT32)

    with pytest.raises(ModelFormatError, match="is 2; there are 2 blocks in total"):
        GgufCheckpoint(write_gguf(tmp_path / "bad.gguf", model, change=too_many))
