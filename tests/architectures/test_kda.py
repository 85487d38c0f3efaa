"""Kimi delta attention: published words of configs and names of tensors, layers that no two programs agree about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.engines.opencl.supported import lacking
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked
from tests.support.family_engines import in_chunks, load
from tests.support.family_table import FAMILIES, FULL, LINEAR_ATTENTION, VOCAB, variants
from tests.support.tiny_families import build, write_folder

KIMI, LING = "kimi_linear", "bailing_hybrid"
IDS = np.random.default_rng(3).integers(3, VOCAB, 20).astype(np.int32)


def rewritten(folder: Path, change: Any, rename: Any) -> Path:
    """The folder with other words in its config and other names of its tensors."""
    path, file = folder / "config.json", folder / "model.safetensors"
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    save_file({rename(name): values for name, values in load_file(file).items()}, file, {"format": "pt"})
    return folder


def as_kimi(config: dict[str, Any]) -> None:
    """The words of moonshotai's config."""
    for key in ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"):
        del config[key]
    config |= {
        "linear_attn_config": {
            "full_attn_layers": [3], "kda_layers": [1, 2], "head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4,
        },
        "first_k_dense_replace": 1, "head_dim": 72, "mla_use_nope": True, "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid", "num_nextn_predict_layers": 0, "rope_scaling": None,
        "rope_theta": 10000.0, "use_grouped_topk": True,
    }  # fmt: skip


def as_ling(config: dict[str, Any]) -> None:
    """The words of inclusionAI's config; transformers writes another head_dim."""
    for key in ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"):
        del config[key]
    config |= {
        "head_dim": 16, "layer_group_size": 3, "no_kda_lora": True, "moe_shared_expert_intermediate_size": 40,
        "gated_attention_proj_granularity_type": "head_wise", "expert_swiglu_limit_list": [None, 0],
    }  # fmt: skip


def in_ling(name: str) -> str:
    """Only layers with latents call their output dense."""
    return name if "layers.2." in name else name.replace("attention.dense", "attention.o_proj")


@pytest.mark.parametrize(
    ("model_type", "change", "rename"),
    [
        (KIMI, as_kimi, lambda name: name.replace("layers.0.block_sparse_moe.", "layers.0.mlp.")),
        (LING, as_ling, in_ling),
    ],
    ids=[KIMI, LING],
)
def test_published_folders_are_what_transformers_writes(
    tmp_path: Path, model_type: str, change: Any, rename: Any
) -> None:
    folder = write_folder(tmp_path, build(model_type, variants(model_type)[0]))
    expected = in_chunks(load(folder), IDS, [20])
    assert in_chunks(load(rewritten(folder, change, rename)), IDS, [20]).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("model_type", "change", "why"),
    [
        (KIMI, {"layer_types": None, "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [3]}},
         r"has the layers \[1, 3\]; it must have each of 1 to 3"),
        (KIMI, {"linear_attn_config": [1]}, "must be an object"),
        (KIMI, {"linear_attn_config": {"head_dim": 0}}, "linear_attn_config"),
        (KIMI, {"moe_router_activation_func": "softmax"}, "moe_router_activation_func is 'softmax'"),
        (LING, {"layer_types": None, "layer_group_size": 2}, "which does not divide 3 layers"),
        (LING, {"moe_shared_expert_intermediate_size": 41}, "is 41; shared experts have 40 in total"),
        (LING, {"expert_swiglu_limit_list": [7.0]}, "must not set limits"),
        (LING, {"gated_attention_proj_granularity_type": "element_wise"}, "granularity_type is 'element_wise'"),
    ],
)  # fmt: skip
def test_a_config_that_no_layer_can_be_made_of(
    tmp_path: Path, model_type: str, change: dict[str, Any], why: str
) -> None:
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=why):
        checked(tmp_path, model_type, **FAMILIES[model_type].base | change)


@pytest.mark.parametrize(
    ("model_type", "features"),
    [
        (KIMI, ["KimiDeltaAttention layers"]),
        (LING, ["KimiDeltaAttention layers", "gates on latent attention"]),
    ],
)
def test_opencl_names_what_it_does_not_run(tmp_path: Path, model_type: str, features: list[str]) -> None:
    config = checked(tmp_path, model_type, **FAMILIES[model_type].base)
    assert lacking(spec_for(config, 64)) == features


def test_kimis_layers_by_default(tmp_path: Path) -> None:
    config = checked(tmp_path, KIMI, **FAMILIES[KIMI].base | {"layer_types": None, "mlp_layer_types": None,
                                                              "num_hidden_layers": 9})  # fmt: skip
    assert [i for i, kind in enumerate(config["layer_types"]) if kind == FULL] == [4, 8]
    assert config["layer_types"][0] == LINEAR_ATTENTION
    assert config["mlp_layer_types"] == ["dense", *["sparse"] * 8]
