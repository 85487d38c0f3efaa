"""Every ``llama.*`` key of a GGUF file: supported as llama.cpp does, without effect, refused by name, or named."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.architectures.families.dense import FAMILIES
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint
from ipex_lookahead.errors import UnsupportedModelError
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

GGUF = FAMILIES["llama"].GGUF
NEUTRAL, REFUSED = GGUF.all_neutral(), GGUF.all_refused()

"""What llama.cpp asks a file of architecture ``llama`` for (llama_model_base::load_hparams, llama_model_llama)."""

"""What converters write beside that."""


def opened(folder: Path, **metadata: Any) -> GgufCheckpoint:
    """``__`` stands for a dot."""
    keys = {f"llama.{key.replace('__', '.')}": value for key, value in metadata.items()}
    return GgufCheckpoint(write_tiny_gguf(folder / "m.gguf", metadata=keys))


@pytest.mark.parametrize("key", sorted(set(REFUSED) - {"expert_count"}))  # with experts it is a mixtral
def test_what_is_not_there_here_is_refused_by_name(tmp_path: Path, key: str) -> None:
    file = tmp_path / "m.gguf"
    value: Any = False if key == "attention.causal" else 7.0
    with pytest.raises(UnsupportedModelError, match=f"llama.{key} is {value}"):
        GgufCheckpoint(write_tiny_gguf(file, metadata={f"llama.{key}": value}))
    for harmless in REFUSED[key].unless:
        GgufCheckpoint(write_tiny_gguf(file, metadata={f"llama.{key}": float(harmless)})).close()


def test_neutral_keys_change_nothing_and_are_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = opened(tmp_path).config
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        for key in NEUTRAL:
            checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", metadata={f"llama.{key}": 3}))
            assert checkpoint.config == plain
            assert checkpoint.unknown_keys == []
    assert not caplog.records


def test_unknown_keys_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        checkpoint = opened(tmp_path, attention__novel_scale=2.0, other_switch=True)
    assert checkpoint.unknown_keys == ["llama.attention.novel_scale", "llama.other_switch"]
    assert "llama.attention.novel_scale, llama.other_switch" in caplog.text
    assert str(checkpoint.path) in caplog.text


# ---- rope: what llama.cpp makes of the keys, in transformers' words, through the loader ----------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
ROPE: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
    ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    ({"type": "linear", "rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    ({"factor": 2.0, "rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 2.0}),
    ({"factor": 0.0, "rope.scale_linear": 4.0}, None),
    ({"type": "linear"}, None),
    ({"type": "none", "factor": 2.0}, None),
    ({"type": "yarn", "factor": 4.0, "original_context_length": 64}, YARN),
    ({"type": "yarn", "rope.scale_linear": 4.0, "original_context_length": 64}, YARN),
    ({"type": "yarn", "factor": 4.0}, YARN | {"original_max_position_embeddings": 256}),
    (
        {"type": "yarn", "factor": 4.0, "original_context_length": 64, "attn_factor": 1.25},
        YARN | {"attention_factor": 1.25 * (0.1 * math.log(4.0) + 1)},
    ),
    (
        {"type": "yarn", "factor": 0.5, "original_context_length": 64, "attn_factor": 1.25},
        YARN | {"factor": 0.5, "attention_factor": 1.25},
    ),
    (
        {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0},
        YARN | {"beta_fast": 8.0, "beta_slow": 2.0},
    ),
    ({"attn_factor": 1.0, "yarn_ext_factor": -1.0}, None),
]


@pytest.mark.parametrize(("keys", "scaling"), ROPE)
def test_rope_runs_as_llama_cpp_reads_it(tmp_path: Path, keys: dict[str, Any], scaling: dict[str, Any] | None) -> None:
    metadata = {f"llama.{key}" if "rope." in key else f"llama.rope.scaling.{key}": v for key, v in keys.items()}
    file = write_tiny_gguf(tmp_path / "m.gguf", quant="F32", seed=5, metadata=metadata)
    folder = write_tiny_llama(tmp_path / "folder", seed=5)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling}))
    model = AutoModelForCausalLM.from_pretrained(file, threads=1)
    reference = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, 96, (1, 100)))
    with torch.no_grad():
        expected = reference(tokens).logits[0].numpy()
    # Keys and values are float16 here: a part in some hundreds where the factor makes the scores larger.
    assert np.abs(model(tokens).logits[0].numpy() - expected).max() < 8e-3 * expected.std()


@pytest.mark.parametrize(
    "keys",
    [
        {"rope__scaling__attn_factor": 1.5},
        {"rope__scaling__attn_factor": 1.5, "rope__scaling__type": "none"},
        {"rope__scaling__attn_factor": 1.5, "rope__scaling__type": "linear", "rope__scaling__factor": 2.0},
        {"rope__scaling__attn_factor": 1.5, "rope__scaling__type": "yarn"},
    ],
)
def test_an_attention_factor_without_yarn_is_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"llama\.rope\.scaling\.attn_factor is 1\.5 without yarn"):
        opened(tmp_path, **keys)
