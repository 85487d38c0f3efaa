"""Granite with windows: sinks, a rope base for each layer, and what GGUF files say of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.errors import ModelFormatError
from tests.support.family_configs import checked, opened, spec_of, windows
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build

BOTH = pytest.mark.parametrize("model_type", ["granite_swa", "granitemoe_swa"])


@BOTH
def test_the_first_and_each_fourth_layer_after_it_see_all(tmp_path: Path, model_type: str) -> None:
    spec = spec_of(tmp_path, model_type, num_hidden_layers=6)
    assert windows(spec) == [None, 128, 128, 128, None, 128]
    assert all(block.mixer.sinks.shape == (4,) for block in spec.layers)


@BOTH
def test_a_base_of_0_is_no_rope(tmp_path: Path, model_type: str) -> None:
    spec = spec_of(tmp_path, model_type, layer_rope_theta=[0, 400.0])
    ropes = [block.mixer.rope for block in spec.layers]
    assert ropes[0] is None
    assert ropes[1].frequencies[1] == pytest.approx(400.0 ** (-1 / 8), rel=1e-6)
    assert checked(tmp_path, model_type, rope_theta=777.0)["layer_rope_theta"] == [777.0, 777.0]


@BOTH
@pytest.mark.parametrize("bases", [[1e4], [1e4, True], [1e4, -2.0], "all", [1e4, None]])
def test_bases_that_are_none_are_refused_by_name(tmp_path: Path, model_type: str, bases: Any) -> None:
    with pytest.raises(ModelFormatError, match="layer_rope_theta"):
        checked(tmp_path, model_type, layer_rope_theta=bases)


def test_a_gguf_file_names_the_layers_with_rope(tmp_path: Path) -> None:
    pattern = [True, False, True, True, False]
    file = opened(tmp_path, "granite_swa", {"granite_swa.attention.rope_pattern": pattern})
    assert [block.mixer.rope is not None for block in file.spec.layers] == pattern
    with pytest.raises(ModelFormatError, match=r"rope_pattern.*has 2 values for 5 layers"):
        opened(tmp_path, "granite_swa", {"granite_swa.attention.rope_pattern": pattern[:2]})


def test_the_number_of_experts_decides_about_the_family_of_a_file(tmp_path: Path) -> None:
    for model_type in ("granite_swa", "granitemoe_swa", "granitemoe", "granitemoeshared"):
        file = opened(tmp_path, model_type, {})
        assert (file.config["model_type"], file.unknown_keys) == (model_type, [])


@pytest.mark.parametrize("model_type", ["granite_swa", "granitemoe_swa", "granitemoe"])
def test_a_file_without_a_factor_scales_scores_by_the_root_of_the_head_size(tmp_path: Path, model_type: str) -> None:
    model = build(model_type, variants(model_type)[0])
    key = f"{'granitemoe' if model_type == 'granitemoe' else 'granite_swa'}.attention.scale"
    assert {block.mixer.scale for block in opened(tmp_path, model_type, {}).spec.layers} == {0.125}
    file = GgufCheckpoint(write_gguf(tmp_path / "without.gguf", model, change=lambda keys, _: keys.pop(key)))
    file.close()
    assert {block.mixer.scale for block in file.spec.layers} == {0.25}
