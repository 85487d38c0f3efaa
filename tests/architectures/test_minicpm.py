"""MiniCPM: multipliers under their names in folders and in GGUF files, and two sets of frequencies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, spec_of
from tests.support.family_table import CONTEXT, FAMILIES, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build

BASE = FAMILIES["minicpm"].base
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def multipliers(spec: Any) -> tuple[float, float, float]:
    return spec.embedding_multiplier, spec.layers[0].residual_multiplier, spec.logit_multiplier


def test_the_multipliers_of_a_folder(tmp_path: Path) -> None:
    assert multipliers(spec_of(tmp_path, "minicpm", **BASE)) == (3.0, 0.8 / math.sqrt(3), 0.25)
    assert multipliers(spec_of(tmp_path, "minicpm")) == (1.0, 1 / math.sqrt(2), 1 / 64)


def test_a_file_has_the_divisor_of_logits_and_the_multiplier_of_residuals(tmp_path: Path) -> None:
    plain = build("minicpm", variants("minicpm")[0])
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", plain))
    file.close()
    assert file.metadata["minicpm.logit_scale"] == 4.0
    assert [np.float32(one) for one in multipliers(file.spec)] == [3, np.float32(0.8 / math.sqrt(3)), 0.25]


def test_a_file_without_multipliers_has_those_of_the_first_models(tmp_path: Path) -> None:
    """Its logits are divided by the hidden size over 256."""

    def drop(keys: dict[str, Any], _: dict[str, Any]) -> None:
        for name in ("embedding_scale", "residual_scale", "logit_scale"):
            del keys[f"minicpm.{name}"]

    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("minicpm", variants("minicpm")[0]), change=drop))
    file.close()
    assert multipliers(file.spec) == (12.0, 1.4 / math.sqrt(3), 256 / 64)


def test_the_context_selects_one_of_two_sets_of_frequencies(tmp_path: Path) -> None:
    """With the factor of the published code on cos and sin, which does not read one from the file."""
    config = checked(tmp_path, "minicpm", **BASE, rope_scaling={**LONG, "original_max_position_embeddings": 64})
    short, long = (spec_for(config, most).layers[0].mixer.rope for most in (64, CONTEXT))
    assert (long.frequencies * 2 == short.frequencies).all()
    assert short.factor == long.factor == math.sqrt(1 + math.log(4) / math.log(64))


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"sparse_config": {"dense_len": 8192}}, UnsupportedModelError, "sparse_config is .* makes attention sparse"),
        ({"num_experts": 8}, UnsupportedModelError, "num_experts is 8, which makes the MLP a mixture"),
        ({"rope_scaling": {**LONG, "long_factor": [1.0] * 7}}, ModelFormatError, "7 divisors for 8 pairs"),
        ({"scale_depth": 0}, ModelFormatError, "scale_depth at byte"),
    ],
)
def test_values_that_are_refused(tmp_path: Path, values: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        checked(tmp_path, "minicpm", **{**BASE, **values})
