"""StarCoder 2: layer norms with a bias, an MLP without a gate, one switch for the linear layers' biases."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows


def test_norms_are_layer_norms_and_have_biases_whatever_else_has(tmp_path: Path) -> None:
    for use_bias in (True, False):
        spec = spec_of(tmp_path, "starcoder2", use_bias=use_bias, norm_epsilon=1e-4, sliding_window=9)
        block = spec.layers[0]
        for norm in (spec.final_norm, block.mixer_norm, block.feed_forward_norm):
            assert norm.centered
            assert norm.bias is not None
            assert norm.epsilon == 1e-4
        assert {one.bias is not None for one in (block.mixer.q, block.mixer.o, block.feed_forward.up)} == {use_bias}
        assert block.feed_forward.gate is None
        assert windows(spec) == [9, 9]
    assert block.feed_forward.down.weight.hf.name == "model.layers.0.mlp.c_proj.weight"


def test_the_files_epsilon_is_a_layer_norms(tmp_path: Path) -> None:
    assert opened(tmp_path, "starcoder2", {}).config["norm_epsilon"] == 1e-5
    with pytest.raises(ModelFormatError, match="norm_epsilon at byte .* is -1"):
        checked(tmp_path, "starcoder2", norm_epsilon=-1)
    with pytest.raises(UnsupportedModelError, match="hidden_act is 'silu'"):
        checked(tmp_path, "starcoder2", hidden_act="silu")
