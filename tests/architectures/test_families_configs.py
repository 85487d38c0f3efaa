"""A checked config means the same however often it is written and read, and to transformers as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.architectures import family, model_types
from ipex_lookahead.engines.hf_config import config_object
from tests.support.family_configs import read_config
from tests.support.family_table import Variant, variants
from tests.support.reference_models import MODELS
from tests.support.tiny_families import as_of_old, config_of

EVERY = [(model_type, variant) for model_type in model_types() for variant in variants(model_type)]
EACH = pytest.mark.parametrize(("model_type", "variant"), EVERY, ids=[f"{name}-{one.name}" for name, one in EVERY])
OLD = pytest.mark.parametrize("old_words", [False, True], ids=["", "old"])


def read(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return read_config(path)


def written(model_type: str, variant: Variant, old_words: bool) -> dict[str, Any]:
    config = json.loads(config_of(model_type, variant).to_json_string(use_diff=False))
    return as_of_old(config) if old_words else config


@EACH
@OLD
@pytest.mark.rotating(86)
def test_what_was_checked_is_read_again_as_it_is(
    tmp_path: Path, model_type: str, variant: Variant, old_words: bool
) -> None:
    config = read(tmp_path, written(model_type, variant, old_words))
    if config["tie_word_embeddings"] is None:
        config["tie_word_embeddings"] = True  # as the tensors tell
    assert read(tmp_path, config) == config


@EACH
@OLD
@pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.rotating(86)
def test_transformers_understands_it_as_it_was(
    tmp_path: Path, model_type: str, variant: Variant, old_words: bool, is_checked: bool
) -> None:
    """Of the keys that are used: what its own class says after reading our words is what it said before.

    Families that transformers lacks have no class.

    So it is where the class does not check them, as for a config that it would refuse; values that the class rewrites
    then stay as the config has them.
    """
    if model_type in MODELS:
        return
    config = read(tmp_path, written(model_type, variant, old_words))
    expected = config_of(model_type, variant).get_text_config().to_dict()
    if config["tie_word_embeddings"] is None:
        config["tie_word_embeddings"] = expected.get("tie_word_embeddings", True)  # the tensors tell
    theirs = config_object(config, checked=is_checked).to_dict()
    part = family(model_type).KEYS.parts.get(expected["model_type"])
    assert theirs["model_type"] == ((part and part.family) or expected["model_type"])
    keys = {key for key in config if expected.get(key) is not None} - {"architectures", "dtype", "model_type"}
    if expected.get("block_auto_adjust_ff_dim"):  # LFM2's rule for the MLP's size has been applied
        keys -= {"intermediate_size", "block_auto_adjust_ff_dim"}
    assert "hidden_size" in keys
    assert {"rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_eps", "layer_norm_epsilon"} & keys
    if not is_checked:
        keys -= {key for key in keys if theirs[key] == config[key]}
    assert {key: theirs[key] for key in keys} == {key: expected[key] for key in keys}
    if "rope_parameters" not in expected:
        return  # Nemotron-H knows no positions
    ours, before = flat(theirs["rope_parameters"]), flat(expected["rope_parameters"])
    before = {key: value for key, value in before.items() if not key.startswith("mrope_")}  # plain for a text
    assert {key: ours.get(key) for key in before} == before


def flat(rope: dict[str, Any]) -> dict[str, Any]:
    """Parameters by their names, of ropes by kind of layer too; without a part of 1, which is the whole."""
    parts = {kind: flat(value) for kind, value in rope.items() if isinstance(value, dict)}
    named = {f"{kind}.{key}": value for kind, part in parts.items() for key, value in part.items()}
    own = {
        key: value for key, value in rope.items() if key not in parts and (key, value) != ("partial_rotary_factor", 1)
    }
    return {**named, **own}
