"""OLMoE: norms over the whole of q and k, and what clips them is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, spec_of

SIZES = {"num_experts": 5, "num_experts_per_tok": 2}


def test_norms_are_over_the_projections(tmp_path: Path) -> None:
    attention = spec_of(tmp_path, "olmoe", **SIZES).layers[0].mixer
    assert (attention.q_norm.weight.shape, attention.k_norm.weight.shape) == ((64,), (32,))
    assert not spec_of(tmp_path, "olmoe", **SIZES).layers[0].feed_forward.renormalise


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="clip_qkv is 8.0, which clips"):
        checked(tmp_path, "olmoe", clip_qkv=8.0, **SIZES)
    with pytest.raises(ModelFormatError, match="num_experts_per_tok at byte .* is 6; there are 5"):
        checked(tmp_path, "olmoe", num_experts=5, num_experts_per_tok=6)
