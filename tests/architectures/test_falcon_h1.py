"""Falcon-H1: sizes and factors that contradict each other, and what OpenCL lacks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.engines.opencl.supported import lacking
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked
from tests.support.family_table import FAMILIES, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build

BASE = FAMILIES["falcon_h1"].base


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attention_bias": True}, "attention_in_multiplier is 1.3; with attention_bias it must be 1"),
        ({"mamba_proj_bias": True}, "ssm_in_multiplier is 1.2; with mamba_proj_bias it must be 1"),
        ({"mlp_multipliers": [1.0]}, "mlp_multipliers.* must be a list of 2 numbers"),
        ({"ssm_multipliers": [1.0, 1.0, 1.0, 1.0, "x"]}, "ssm_multipliers"),
        ({"mamba_n_heads": 5}, "mamba_n_heads.* it must be 96"),
        ({"mamba_n_groups": 4}, "does not divide 6 heads"),
        ({"time_step_limit": [0.01, 0.1]}, "no agreed meaning"),
    ],
)
def test_a_config_that_no_layer_can_be_made_of(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=why):
        checked(tmp_path, "falcon_h1", **BASE | change)


def test_a_file_whose_inner_size_is_of_no_heads(tmp_path: Path) -> None:
    def change(keys: dict[str, Any], tensors: Any) -> None:
        keys["falcon-h1.ssm.inner_size"].value = 95

    file = write_gguf(tmp_path / "m.gguf", build("falcon_h1", variants("falcon_h1")[0]), change=change)
    with pytest.raises(ModelFormatError, match="ssm.inner_size.*is 95; 6 heads"):
        GgufCheckpoint(file)


def test_opencl_names_what_it_does_not_run(tmp_path: Path) -> None:
    assert lacking(spec_for(checked(tmp_path, "falcon_h1", **BASE), 64)) == [
        "factors on feed-forwards", "factors on mixers", "the activation scaled_silu", "two mixers in a layer",
    ]  # fmt: skip
