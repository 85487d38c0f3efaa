"""A checked config means the same however often it is written and read, and to transformers as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.architectures import model_types
from ipex_lookahead.checkpoints.config_json import read_config
from ipex_lookahead.engines.hf_config import transformers_config
from tests.support.tiny_families import Variant, as_of_old, config_of, variants

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
def test_what_was_checked_is_read_again_as_it_is(
    tmp_path: Path, model_type: str, variant: Variant, old_words: bool
) -> None:
    config = read(tmp_path, written(model_type, variant, old_words))
    assert read(tmp_path, config) == config


@EACH
@OLD
def test_transformers_understands_it_as_it_was(
    tmp_path: Path, model_type: str, variant: Variant, old_words: bool
) -> None:
    """Of the keys that are used: what its own class says after reading our words is what it said before."""
    config = read(tmp_path, written(model_type, variant, old_words))
    theirs = transformers_config(config).to_dict()
    expected = config_of(model_type, variant).get_text_config().to_dict()
    assert theirs["model_type"] == expected["model_type"]
    keys = ({*config} & {*expected}) - {"architectures", "dtype"}
    if expected.get("head_dim") is None:  # their model takes an even share then, as ours says
        keys -= {"head_dim"}
    assert {"hidden_size", "rms_norm_eps", "tie_word_embeddings"} <= keys
    assert {key: theirs[key] for key in keys} == {key: expected[key] for key in keys}
    assert without_spelling(theirs["rope_parameters"]) == without_spelling(expected["rope_parameters"])


def without_spelling(rope: dict[str, Any]) -> dict[str, Any]:
    """Without ``type``, which says what ``rope_type`` says, and without what is as it is when nobody says it."""
    if any(isinstance(value, dict) for value in rope.values()):
        return {kind: without_spelling(value) for kind, value in rope.items()}
    return {key: value for key, value in rope.items() if key != "type" and (key, value) != ("partial_rotary_factor", 1)}
