"""Names of tensors in folders: of a text part, and of models that were saved without their head."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from ipex_lookahead.architectures import model_types
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.tensor_names import renamed
from tests.support.family_table import variants
from tests.support.reference_models import MODELS
from tests.support.tiny_families import build


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("language_model.layers.3.input_layernorm.weight", "model.layers.3.input_layernorm.weight"),
        ("model.text_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("layers.11.self_attn.q_proj.qweight", "model.layers.11.self_attn.q_proj.qweight"),
        ("embed_tokens.weight", "model.embed_tokens.weight"),
        ("norm.weight", "model.norm.weight"),
        ("vision_tower.vision_model.post_layernorm.weight", None),
        ("model.vision_tower.embeddings.patch_embedding.weight", None),
        ("visual.blocks.0.norm1.weight", None),
        ("model.visual.merger.mlp.0.weight", None),
        ("multi_modal_projector.mm_soft_emb_norm.weight", None),
        ("model.multi_modal_projector.mm_input_projection_weight", None),
        ("something.else", "something.else"),
        ("layers_of_another.kind", "layers_of_another.kind"),
    ],
)
def test_the_name_that_a_spec_has(name: str, ours: str | None) -> None:
    assert renamed(name) == ours


@pytest.mark.parametrize("model_type", [one for one in model_types() if one not in MODELS])
@pytest.mark.rotating(18)
def test_a_model_saved_without_its_head(tmp_path: Path, model_type: str) -> None:
    """``AutoModel``'s part of each family: the same weights, whose names begin one word later."""
    model = build(model_type, variants(model_type)[0])
    model.save_pretrained(tmp_path / "whole")
    model.model.save_pretrained(tmp_path / "base")
    assert not any(name.startswith("model.layers") for name in load_file(tmp_path / "base" / "model.safetensors"))
    for folder in ("whole", "base"):
        path = tmp_path / folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["tie_word_embeddings"] = True  # else there is a head, which the whole alone has
        path.write_text(json.dumps(config), encoding="utf-8")
    whole, base = (open_checkpoint(tmp_path / folder) for folder in ("whole", "base"))
    names = [name for name in whole.names() if name != "lm_head.weight"]
    assert list(base.names()) == names
    assert base.spec.tied
    for name in names:
        assert np.array_equal(base.read(name).codes, whole.read(name).codes), name
    whole.close()
    base.close()
