"""OLMo 2: norms after, and over the whole of q and k; a file with a window is an OLMo 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of


def test_norms_stand_behind_and_over_whole_projections(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "olmo2", attention_bias=True)
    block = spec.layers[1]
    assert block.mixer_norm is block.feed_forward_norm is None
    assert block.mixer_after.weight.gguf.name == "blk.1.post_attention_norm.weight"
    assert block.feed_forward_after.weight.gguf.name == "blk.1.post_ffw_norm.weight"
    attention = block.mixer
    assert (attention.q_norm.weight.shape, attention.k_norm.weight.shape) == ((64,), (32,))
    assert attention.q.weight.gguf.pairs == 0  # rope of halves, also at llama.cpp
    assert attention.o.bias is not None
    assert not spec.tied


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sliding_window": 9}, "sliding_window is 9"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'.*'silu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        checked(tmp_path, "olmo2", **values)


@pytest.mark.parametrize(("window", "family"), [(None, "olmo2"), (0, "olmo2"), (5, "olmo3")])
def test_the_window_tells_the_two_apart(tmp_path: Path, window: int | None, family: str) -> None:
    file = opened(tmp_path, "olmo2", {} if window is None else {"olmo2.attention.sliding_window": window})
    assert file.config["model_type"] == file.spec.model_type == family
    assert file.config["architectures"] == [f"Olmo{family[-1]}ForCausalLM"]
