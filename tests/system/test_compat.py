"""What stands in for parts that old releases of transformers lack does what those parts do where they are there."""

from __future__ import annotations

import pytest
import torch
from transformers.generation import logits_process

from ipex_lookahead.hf.generation.options import resolve
from ipex_lookahead.system import compat


@pytest.mark.skipif(not hasattr(logits_process, "MinPLogitsWarper"), reason="this transformers has no min_p to compare")
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.5, 1.0])
def test_min_p(min_p: float) -> None:
    scores = torch.randn((3, 50), generator=torch.Generator().manual_seed(1)) * 2
    expected = logits_process.MinPLogitsWarper(min_p)(torch.zeros((3, 1)), scores)
    assert torch.equal(compat._MinP(min_p)(torch.zeros((3, 1)), scores), expected)


def test_blank_settings_hold_nothing() -> None:
    """Whatever transformers fills in by itself (in old releases max_length=20) is no wish of the caller's."""
    from transformers import GenerationConfig

    settings, left = resolve(GenerationConfig(), None, {"input_ids": 1})
    assert settings.max_length is None
    assert settings.max_new_tokens is None
    assert settings.min_p is None
    assert left == {"input_ids": 1}
    settings, _ = resolve(GenerationConfig(max_length=77), GenerationConfig(top_k=3), {"min_p": 0.1})
    assert (settings.max_length, settings.top_k, settings.min_p) == (77, 3, 0.1)


def test_llama_configs() -> None:
    values = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 96}
    plain = compat.llama_config(values, {"rope_type": "default"}, 500000.0)
    linear = compat.llama_config(values, {"rope_type": "linear", "factor": 2.0}, 10000.0)
    if compat.RELEASE >= (5, 0):
        assert plain.rope_parameters["rope_theta"] == 500000.0
        assert linear.rope_parameters["factor"] == 2.0
    else:
        assert plain.rope_theta == 500000.0
        assert linear.rope_scaling["factor"] == 2.0
        assert linear.rope_scaling["type"] == "linear"


def test_what_is_absent_says_so() -> None:
    with pytest.raises(compat.InputError, match="has no top_h"):
        compat._absent("top_h")(top_h=0.5)
