"""The first Gemma: GELU by either name, the embedding's multiplier, norms less 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import checked, spec_of


def test_gelu_is_its_tanh_form_whatever_the_first_files_call_it(tmp_path: Path) -> None:
    for name in ("gelu", "gelu_pytorch_tanh"):
        spec = spec_of(tmp_path, "gemma", head_dim=16, hidden_act=name)
        assert spec.layers[0].feed_forward.activation.kind == "gelu_tanh"
    assert checked(tmp_path, "gemma", head_dim=16, hidden_act="gelu")["hidden_act"] == "gelu_pytorch_tanh"
    with pytest.raises(UnsupportedModelError, match="hidden_act is 'silu'"):
        checked(tmp_path, "gemma", head_dim=16, hidden_act="silu")
    with pytest.raises(UnsupportedModelError, match="hidden_activation is 'silu', which names another activation"):
        checked(tmp_path, "gemma", head_dim=16, hidden_activation="silu")


def test_embeddings_are_multiplied_and_norms_kept_less_one(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "gemma", head_dim=16)
    assert spec.embedding_multiplier == 8.0
    assert spec.tied
    assert {block.mixer_norm.weight.hf.offset for block in spec.layers} == {1.0}
    assert spec.final_norm.weight.gguf.offset == 0.0
