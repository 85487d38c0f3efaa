"""Arcee: an MLP without a gate, of squares."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import checked, spec_of


def test_the_mlp_has_no_gate(tmp_path: Path) -> None:
    mlp = spec_of(tmp_path, "arcee", mlp_bias=True).layers[0].feed_forward
    assert mlp.gate is None
    assert mlp.activation.kind == "relu_squared"
    assert mlp.up.bias is not None
    assert mlp.down.bias is not None
    with pytest.raises(UnsupportedModelError, match="hidden_act is 'silu'"):
        checked(tmp_path, "arcee", hidden_act="silu")
