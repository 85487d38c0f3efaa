"""Configs to decoder specs: rope against transformers' own functions, and what cannot be run refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures import model_types, spec_for
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.errors import UnsupportedModelError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

SCALINGS = [
    {"rope_type": "linear", "factor": 2.5},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 16.0, "beta_fast": 16.0, "beta_slow": 2.0, "original_max_position_embeddings": 256},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7, "original_max_position_embeddings": 1024},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "mscale": 0.9,
        "mscale_all_dim": 0.5,
        "original_max_position_embeddings": 1024,
    },
    {"rope_type": "yarn", "factor": 4.0, "truncate": False, "original_max_position_embeddings": 1024},
]


@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "-".join(f"{v}" for v in s.values()))
def test_rope_scaling_is_that_of_transformers(scaling: dict[str, Any], head_dim: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = {**CONFIG, "head_dim": head_dim, "rope_scaling": scaling, "rope_theta": 500000.0}
    theirs = LlamaConfig(
        **{k: v for k, v in config.items() if k not in ("model_type", "rope_scaling", "rope_theta")},
        rope_parameters={**scaling, "rope_theta": 500000.0},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, "cpu")
    turn = rope(config)
    frequencies, attention_factor = turn.frequencies, turn.factor
    assert frequencies.dtype == np.float32
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=2e-6)
    assert attention_factor == pytest.approx(factor)


def test_plain_and_dynamic_rope_are_the_same_within_the_context() -> None:
    turn, other = rope(CONFIG), rope({**CONFIG, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}})
    plain = turn.frequencies
    assert (plain == other.frequencies).all()
    assert turn.factor == other.factor == 1.0
    assert plain[0] == 1.0
    assert plain[1] == pytest.approx(10000 ** (-2 / 32))


def test_a_gguf_files_own_divisors_divide() -> None:
    factors = [1.0] * 8 + [4.0] * 8
    got = rope({**CONFIG, "rope_scaling": {"rope_type": "freq_factors", "factors": factors}}).frequencies
    np.testing.assert_allclose(got, rope(CONFIG).frequencies / np.array(factors), rtol=1e-6)


def test_unknown_scaling_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="ntk.*supported are"):
        rope({**CONFIG, "rope_scaling": {"rope_type": "ntk", "factor": 4.0}})


def test_unknown_families_and_activations_are_refused() -> None:
    assert "llama" in model_types()
    with pytest.raises(UnsupportedModelError, match="'mamba'.*llama"):
        spec_for({**CONFIG, "model_type": "mamba"})
    with pytest.raises(UnsupportedModelError, match="rope"):  # a helper module is no model type
        spec_for({**CONFIG, "model_type": "rope"})
