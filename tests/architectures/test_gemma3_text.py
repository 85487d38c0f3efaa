"""Gemma 3 for text: two ropes, two kinds of layers, norms over heads; and the names of the text part."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows

SIZES = {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 7, "num_hidden_layers": 7}


def test_every_sixth_layer_sees_all_and_has_the_stretched_rope(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    spec = spec_of(tmp_path, "gemma3_text", **SIZES, rope_scaling=scaling)
    assert windows(spec) == [7, 7, 7, 7, 7, None, 7]
    near, far = (spec.layers[i].mixer.rope.frequencies for i in (0, 5))
    exponents = np.arange(12) / 12
    np.testing.assert_allclose(near, 10000.0**-exponents, rtol=1e-6)
    np.testing.assert_allclose(far, 1e6**-exponents / 8, rtol=1e-6)
    attention = spec.layers[0].mixer
    assert attention.q_norm.weight.shape == attention.k_norm.weight.shape == (24,)
    assert attention.q_norm.weight.hf.offset == 1.0
    assert attention.softcap is spec.logit_softcap is None
    assert spec.embedding_multiplier == math.sqrt(64)


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": 5e5, "rope_local_base_freq": 300.0},
        {"rope_parameters": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 300.0}}},
        {"rope_parameters": {"full_attention": {"rope_theta": 5e5}}, "rope_local_base_freq": 300.0},
        {"rope_parameters": {"full_attention": None, "sliding_attention": {"type": "default", "rope_theta": 300.0}},
         "rope_theta": 5e5},
    ],
)  # fmt: skip
def test_both_bases_in_every_spelling(tmp_path: Path, values: dict[str, Any]) -> None:
    config = checked(tmp_path, "gemma3_text", **SIZES, **values)
    assert (config["rope_theta"], config["rope_local_base_freq"], config["rope_scaling"]) == (5e5, 300.0, None)


def test_a_pattern_is_spelled_out_and_a_list_goes_before_it(tmp_path: Path) -> None:
    every_third = ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
    config = checked(tmp_path, "gemma3_text", **SIZES, sliding_window_pattern=3)
    assert config["layer_types"] == every_third
    assert "sliding_window_pattern" not in config
    other = checked(tmp_path, "gemma3_text", **SIZES, sliding_window_pattern=2, layer_types=every_third)
    assert other == config
    assert windows(spec_for(checked(tmp_path, "gemma3_text", **SIZES, sliding_window_pattern=1))) == [None] * 7


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"layer_types": ["full_attention"]}, ModelFormatError, "names 1 layers; there are 7"),
        ({"sliding_window_pattern": 0}, ModelFormatError, "sliding_window_pattern.*from 1"),
        ({"attn_logit_softcapping": 50.0}, UnsupportedModelError, "attn_logit_softcapping is 50.0"),
        ({"use_bidirectional_attention": True}, UnsupportedModelError, "use_bidirectional_attention"),
        ({"hidden_activation": "silu"}, UnsupportedModelError, "hidden_activation is 'silu'"),
        ({"rope_local_base_freq": -1.0}, ModelFormatError, "rope_local_base_freq.*-1.0"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 8.0}}, ModelFormatError,
         "rope_parameters.*full_attention and sliding_attention"),
        ({"rope_parameters": {"full_attention": {}, "other": {}}}, ModelFormatError, "must be an object"),
        ({"rope_parameters": {"full_attention": 7}}, ModelFormatError, "full_attention.*is 7"),
        ({"rope_parameters": {"full_attention": {"rope_theta": "x"}}}, ModelFormatError,
         r"rope_parameters.full_attention.rope_theta at byte \d+.*'x'"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 0}}}, ModelFormatError,
         r"rope_parameters.sliding_attention.rope_theta at byte \d+"),
        ({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, UnsupportedModelError,
         "sliding_attention has rope_type 'linear'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}},
         UnsupportedModelError, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}},
          "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, UnsupportedModelError, "remove one of them"),
    ],
)  # fmt: skip
def test_what_cannot_be_run(tmp_path: Path, values: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        checked(tmp_path, "gemma3_text", **SIZES | values)


def test_a_file_without_a_window_has_none(tmp_path: Path) -> None:
    file = opened(tmp_path, "gemma3_text", {"gemma3.attention.sliding_window": 0})
    assert windows(file.spec) == [None] * 3
    assert file.config["sliding_window"] is None


def test_what_a_file_says(tmp_path: Path) -> None:
    values = {"gemma3.final_logit_softcapping": 30.0, "gemma3.rope.freq_base_swa": 777.0}
    file = opened(tmp_path, "gemma3_text", values)
    assert (file.spec.logit_softcap, file.config["rope_local_base_freq"]) == (30.0, 777.0)
    assert file.config["query_pre_attn_scalar"] == file.config["head_dim"]
    assert opened(tmp_path, "gemma3_text", {"gemma3.final_logit_softcapping": 0.0}).spec.logit_softcap is None
    with pytest.raises(ModelFormatError, match=r"gemma3.rope.freq_base_swa at byte \d+.*-2"):
        opened(tmp_path, "gemma3_text", {"gemma3.rope.freq_base_swa": -2.0})
