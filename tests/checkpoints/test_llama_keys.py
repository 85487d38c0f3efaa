"""Keys of a Llama's config.json that are refused by value, and every spelling of its rope."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.architectures.families.dense import FAMILIES
from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import read_config
from tests.support.tiny import TinyLlama, write_tiny_llama

BASE = TinyLlama().config("float32")
KEYS = FAMILIES["llama"].KEYS
NEUTRAL, REFUSED = KEYS.all_neutral(), KEYS.all_refused()


# ---- refused -------------------------------------------------------------------------------------------------------

ASKED: list[tuple[str, list[Any]]] = [
    ("add_cross_attention", [True]),
    ("attention_chunk_size", [64]),
    ("cross_attention_hidden_size", [64]),
    ("draft_vocab_size", [64]),
    ("is_causal", [False, None, 1]),
    ("is_encoder_decoder", [True, 1]),
    ("kv_sharing_modes", [["a"]]),
    ("layer_types", [["full_attention", "sliding_attention"], "full_attention"]),
    ("partial_rotary_factor", [0.5, 0, True]),
    ("per_layer_config", [{"0": {"head_dim": 8}}]),
    ("pruned_heads", [{"0": [1]}]),
    ("quantization_config", [{"quant_method": "gptq"}]),
    ("sliding_window", [8, 0, 255, "x"]),
    ("transformers_weights", ["other.safetensors"]),
]


def config_of(folder: Path, raw: dict[str, Any]) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return read_config(path)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in ASKED for value in values])
def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=f"config.json: {key} is "):
        config_of(tmp_path, BASE | {key: value})


def test_a_part_of_a_head_is_refused_inside_rope_too(tmp_path: Path) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor is 0\.5"):
            config_of(tmp_path, BASE | {key: {"rope_type": "default", "partial_rotary_factor": 0.5}})


def test_values_that_change_nothing_are_taken(tmp_path: Path) -> None:
    plain = config_of(tmp_path, BASE)
    for key, refusal in REFUSED.items():
        for value in refusal.unless:
            assert config_of(tmp_path, BASE | {key: value}) == plain, key
    assert config_of(tmp_path, BASE | {"sliding_window": 256, "layer_types": ["full_attention"] * 2}) == plain
    assert config_of(tmp_path, BASE | {"partial_rotary_factor": 1.0}) == plain
    assert config_of(tmp_path, BASE | dict.fromkeys(NEUTRAL, "anything")) == plain


def test_two_rope_objects_that_differ_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    linear, yarn = {"type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0}
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        same = config_of(tmp_path, BASE | {"rope_scaling": linear, "rope_parameters": linear | {"rope_type": "linear"}})
        assert not caplog.records
        assert config_of(tmp_path, BASE | {"rope_scaling": linear, "rope_parameters": yarn}) == same
    assert "differ in rope_type; using rope_scaling" in caplog.text


# ---- rope in every spelling: through the loader, against transformers ----------------------------------------------

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
OUTSIDE = {"original_max_position_embeddings": 16}
ROPES: list[dict[str, Any]] = [
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": LLAMA3},
    {"rope_scaling": LLAMA3, **OUTSIDE},
    {"rope_scaling": YARN},
    {"rope_scaling": YARN, **OUTSIDE},
    {"rope_parameters": YARN | {"rope_theta": 1000.0, "attention_factor": 1.5, "beta_fast": 8, "truncate": False}},
    {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "beta_slow": 2}},
    {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_parameters": YARN | {"rope_theta": 500.0}},
    {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 3.0}, **OUTSIDE},
    {"rope_theta": 500000.0, "head_dim": None},
]


def test_rope_in_every_spelling_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, seed=5)
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, BASE["vocab_size"], (1, 100)))
    plain = json.loads((folder / "config.json").read_text())
    without = AutoModelForCausalLM.from_pretrained(folder, threads=1, progress=False)(tokens).logits[0].numpy()
    for rope in ROPES:
        (folder / "config.json").write_text(json.dumps(plain | rope))
        got = AutoModelForCausalLM.from_pretrained(folder, threads=1, progress=False)(tokens).logits[0].numpy()
        with torch.no_grad():
            model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            expected = model(tokens).logits[0].numpy()
        # The native engine keeps float16 keys and values: a part in about a thousand of the logits' spread.
        assert np.abs(got - expected).max() < 4e-3 * expected.std(), rope
        assert np.abs(got - without).max() > 0.05 * expected.std(), rope
