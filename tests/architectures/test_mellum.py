"""Mellum 2: two rope bases, dense layers by name, and a block for drafting that is passed over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ipex_lookahead.architectures.spec import Experts
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, spec_of, windows
from tests.support.family_table import FULL, SLIDING, variants
from tests.support.tiny_families import build, write_folder

_FEW = {"num_experts": 8, "moe_intermediate_size": 32, "head_dim": 16}


def test_layers_have_no_window_and_the_bases_of_the_published_model_unless_the_config_has_others(
    tmp_path: Path,
) -> None:
    config = checked(tmp_path, "mellum", **_FEW)
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (500000.0, 10000.0)
    assert config["layer_types"] == [FULL, FULL]
    spec = spec_of(tmp_path, "mellum", **_FEW, layer_types=[SLIDING, FULL], mlp_layer_types=["dense", "sparse"])
    assert windows(spec) == [1024, None]
    assert [isinstance(block.feed_forward, Experts) for block in spec.layers] == [False, True]


def test_layers_of_another_kind_and_scaled_rope_near_by_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="mlp_layer_types.*names 1 layers; there are 2"):
        checked(tmp_path, "mellum", **_FEW, mlp_layer_types=["dense"])
    scaled = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(UnsupportedModelError, match="sliding_attention has rope_type 'linear'"):
        checked(tmp_path, "mellum", **_FEW, rope_parameters={FULL: {"rope_type": "default"}, SLIDING: scaled})


def test_the_block_for_drafting_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(tmp_path, build("mellum", variants("mellum")[0]))
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "mtp.fc.weight": torch.zeros(64, 128)}, file, {"format": "pt"})
    with caplog.at_level(logging.WARNING):
        open_checkpoint(tmp_path).close()
    assert not caplog.records
