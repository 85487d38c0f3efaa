"""OLMo 3: three layers of four with a window and plain rope, the fourth with yarn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Olmo3Config

from ipex_lookahead.engines.hf_config import transformers_config
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked
from tests.support.family_table import SIZES

YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 1.2079441541679836,
    "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip


def test_a_base_of_its_own_must_be_named_for_both_kinds(tmp_path: Path) -> None:
    """Releases of transformers differ in what ``rope_theta`` alone means for layers with a window."""
    with pytest.raises(UnsupportedModelError, match="transformers 4.*transformers 5"):
        checked(tmp_path, "olmo3", rope_theta=1e6)
    both = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 2e4}}
    config = checked(tmp_path, "olmo3", rope_parameters=both)
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 2e4)
    assert checked(tmp_path, "olmo3")["rope_local_base_freq"] == 500000.0


@pytest.mark.parametrize("rope", [{**YARN, "rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 1e4}])
def test_a_rope_of_no_kind_is_that_of_full_attention(tmp_path: Path, rope: dict[str, Any]) -> None:
    """As releases wrote it that had one; what is stretched is stretched where all is seen, with one base for both."""
    plain = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    nested = checked(tmp_path, "olmo3", rope_parameters={"full_attention": rope, "sliding_attention": plain})
    assert checked(tmp_path, "olmo3", rope_parameters=rope) == nested
    config = transformers_config(nested, tmp_path)
    assert config.rope_parameters["sliding_attention"] == plain
    assert config.rope_parameters["full_attention"]["rope_theta"] == rope["rope_theta"]


def test_kinds_go_before_what_stands_beside_them(tmp_path: Path) -> None:
    """Release 5.23 writes both where it has read a flat object, and computes by the kinds."""
    flat = {**YARN, "rope_theta": 1e4}
    kinds = {kind: {"rope_type": "default", "rope_theta": 5e5} for kind in ("full_attention", "sliding_attention")}
    assert checked(tmp_path, "olmo3", rope_parameters={**flat, **kinds}) == checked(tmp_path, "olmo3")
    theirs = Olmo3Config(**SIZES, rope_parameters=dict(flat)).rope_parameters
    assert {kind: theirs[kind] for kind in kinds} == kinds
    with pytest.raises(ModelFormatError, match="must be an object with full_attention and sliding_attention"):
        checked(tmp_path, "olmo3", rope_parameters={**kinds, "others": {}})
    with pytest.raises(ModelFormatError, match=r"rope_parameters.factor at byte \d+"):
        checked(tmp_path, "olmo3", rope_parameters={**YARN, "factor": -1})
