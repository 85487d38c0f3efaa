"""What ``info`` reports of a vision part, computed from headers; the costs of published models."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5.23")

from ipex_lookahead.vision import preparation as preparations
from ipex_lookahead.vision.facts import operations, vision_facts
from ipex_lookahead.vision.towers import gemma4, gemma4_unified, qwen3_vl
from tests.vision.folders import saved
from tests.vision.mmproj_files import write
from tests.vision.test_towers import processor

LARGE = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16}
PUBLISHED = [
    (qwen3_vl, {**LARGE, "deepstack_visual_indexes": []}, preparations.qwen3_vl("", {}), 4096, 1024, 415, 5500),
    (gemma4, {"use_clipped_linears": True}, preparations.gemma4("", {}), 2560, 264, 150, 1100),
    (gemma4_unified, {}, preparations.gemma4("", {}), 3840, 256, 50, 23),
]
"""Tower, config, preparation, hidden size, tokens -> millions of parameters and GFLOP, as stated by others."""


@pytest.mark.parametrize(("tower", "config", "preparation", "hidden", "tokens", "millions", "gflop"), PUBLISHED)
def test_costs_of_published_towers(tower, config, preparation, hidden, tokens, millions, gflop):
    values = {name: config.get(name, key.default) for name, key in tower.KEYS.items()}
    spec = tower.spec(values, hidden)
    assert sum(prod(one.shape) for _, one in spec.named_tensors()) / 1e6 == pytest.approx(millions, rel=0.15)
    assert operations(spec, preparation, tokens) / 1e9 == pytest.approx(gflop, rel=0.15)


@pytest.mark.parametrize("kind", ["gemma4", "qwen3_vl", "gemma3", "smolvlm", "lfm2_vl"])
def test_folders_and_files_have_the_same_facts(kind: str, tmp_path: Path):
    saved(kind, tmp_path, processor(kind))
    folder = vision_facts(tmp_path, 32)
    file = vision_facts(tmp_path, 32, write(tmp_path, tmp_path / "mmproj.gguf"))

    def same(found: dict[str, Any]) -> list[Any]:
        return [found[name] for name in ("tower", "layers", "parameters")]

    assert same(folder) == same(file)
    assert folder["bytes"] == 4 * folder["parameters"]
    assert file["file"] == str(tmp_path / "mmproj.gguf")
    assert 0 < file["bytes"] - folder["bytes"] < 10_000
    assert list(folder["tokens"]) == list(folder["operations"]) == ["224x224", "640x480", "1920x1080", "4000x3000"]
    assert all(one > 0 for one in (*folder["tokens"].values(), *folder["operations"].values()))


def test_a_missing_or_foreign_vision_part_is_a_problem(tmp_path: Path):
    saved("gemma4", tmp_path, processor("gemma4"))
    model = tmp_path / "model.gguf"
    assert vision_facts(model, 32) == {"problem": "there is no mmproj file with the vision part next to the model"}
    other = write(tmp_path, tmp_path / "mmproj.gguf", projection=64)
    assert "hidden size 64; this model has 32" in vision_facts(model, 32, other)["problem"]
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "takes no images" in vision_facts(tmp_path, 32)["problem"]
