"""ERNIE 4.5: neighbours are rotated together, one switch for all biases."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import opened, spec_of


def test_rope_is_interleaved_and_all_or_nothing_is_biased(tmp_path: Path) -> None:
    for use_bias in (False, True):
        block = spec_of(tmp_path, "ernie4_5", head_dim=16, use_bias=use_bias).layers[0]
        assert block.mixer.rope.interleaved
        layers = (block.mixer.q, block.mixer.o, block.feed_forward.up, block.feed_forward.down)
        assert {one.bias is not None for one in layers} == {use_bias}


def test_a_file_of_a_model_that_sees_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="has ernie4_5.rope.dimension_sections"):
        opened(tmp_path, "ernie4_5", {"ernie4_5.rope.dimension_sections": [4, 4, 4, 0]})
