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

from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.errors import ModelFormatError
from tests.support.family_configs import checked
from tests.support.family_engines import in_chunks, load
from tests.support.family_table import FAMILIES, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, text, write_folder

DRAFTING = ["glm4_moe", "deepseek_v3"]


def read(folder: Path, model_type: str, **values: Any) -> dict[str, Any]:
    return checked(folder, model_type, **{**FAMILIES[model_type].base, **values})


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
    assert describe(folder)["drafting"] == f"{len(more)} tensors of blocks for drafting (MTP), which are not used"


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
