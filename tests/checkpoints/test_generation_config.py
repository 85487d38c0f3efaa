"""generation_config.json: every key of transformers' is in one of three tables, and each value is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from ipex_lookahead.checkpoints.generation_config import (
    NEUTRAL,
    OBEYED,
    REFUSED,
    SPECIAL,
    by_transformers,
    read_generation_config,
    refused,
)
from ipex_lookahead.errors import ModelFormatError


def test_every_key_of_transformers_stands_in_one_table() -> None:
    known = {key for key in vars(GenerationConfig()) if not key.startswith("_")}
    tables = [set(OBEYED) | set(SPECIAL), set(REFUSED), set(NEUTRAL)]
    assert known <= set.union(*tables), "obey it, refuse it, or say why it is without effect"
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert all(refusal.reason for refusal in REFUSED.values())
    assert all(NEUTRAL.values())


def test_what_transformers_assumes_asks_for_nothing() -> None:
    """So that a file which spells the defaults out says nothing."""
    assumed = getattr(GenerationConfig, "_get_default_generation_params", lambda: vars(GenerationConfig()))()
    assert not [key for key, value in assumed.items() if refused(key, value)]
    assert by_transformers(assumed, sampled=True) == []


def generation_config_of(tmp_path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return read_generation_config(path, 96)


def test_generation_config(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path / "absent.json", 96) == {}
    raw = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 50, "eos_token_id": [2, 3], "bos_token_id": 1,
           "max_length": 100, "repetition_penalty": 1.1, "pad_token_id": None}  # fmt: skip
    ignored = {
        "_from_model_config": True,
        "transformers_version": "5",
        "custom_generate": "evil/repo",
        "cache_implementation": "hybrid",
    }
    kept = {key: value for key, value in raw.items() if value is not None}
    assert generation_config_of(tmp_path, raw | ignored) == kept


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1.0), ("temperature", "hot"), ("top_p", 1.5), ("top_k", -1), ("top_k", 0.5), ("min_p", 2),
        ("do_sample", 1), ("repetition_penalty", 0), ("max_new_tokens", 0), ("max_length", 2**40),
        ("no_repeat_ngram_size", -1), ("eos_token_id", 96), ("bos_token_id", "1"),
        ("suppress_tokens", 1.5), ("suppress_tokens", [True]), ("bad_words_ids", [[]]), ("bad_words_ids", [3]),
        ("sequence_bias", [[1, 2]]), ("sequence_bias", {"__import__('os')": 1}), ("sequence_bias", {"1": 1}),
        ("watermarking_config", [1]), ("watermarking_config", {"keys": [1]}), ("stop_strings", ["a", ""]),
        ("exponential_decay_length_penalty", [1]), ("exponential_decay_length_penalty", [1, "2"]), ("max_time", -1),
        ("typical_p", 0), ("top_h", 2), ("epsilon_cutoff", 1), ("forced_eos_token_id", "2"), ("use_cache", "yes"),
    ],
)  # fmt: skip
def test_bad_generation_config(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ModelFormatError) as caught:
        generation_config_of(tmp_path, {key: value})
    assert caught.value.field == key
    assert caught.value.offset == len(key) + 5


@pytest.mark.parametrize(
    "raw",
    [
        {"temperature": 1e-320},
        {"do_sample": True, "temperature": 1e-320},
        {"do_sample": True, "temperature": 0},
        {"repetition_penalty": 5e-324},
    ],
)
def test_settings_that_make_sampling_impossible_are_named(tmp_path: Path, raw: dict[str, Any]) -> None:
    with pytest.raises(ModelFormatError, match=r"generation_config\.json: (temperature|repetition_penalty) at byte"):
        generation_config_of(tmp_path, raw)


def test_temperature_0_says_nothing_where_nothing_is_sampled(tmp_path: Path) -> None:
    assert generation_config_of(tmp_path, {"temperature": 0})["temperature"] == 0


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("sequence_bias", {"(1, 2)": 3, "(4,)": -1.5}, [[[1, 2], 3.0], [[4], -1.5]]),  # as transformers writes a dict
        ("sequence_bias", [[[1, 2], 3]], [[[1, 2], 3.0]]),
        ("suppress_tokens", [5, -1, 96], [5, 96]),  # -1 is none; what is not in the vocabulary is not said anyway
        ("stop_strings", "a", ["a"]),
        ("forced_eos_token_id", [2, 3], [2, 3]),
        ("exponential_decay_length_penalty", [3, 1.5], [3, 1.5]),
        ("watermarking_config", {"bias": 2, "seeding_scheme": "selfhash"}, {"bias": 2.0, "seeding_scheme": "selfhash"}),
        ("num_beams", 4, 4),  # kept, and refused by generate, unless its caller says otherwise
        ("guidance_scale", 1.5, 1.5),
    ],
)
def test_values_are_kept_as_generate_takes_them(tmp_path: Path, key: str, value: Any, kept: Any) -> None:
    assert generation_config_of(tmp_path, {key: value}) == {key: kept}


@pytest.mark.parametrize(
    "raw",
    [
        {"num_beams": 1, "guidance_scale": 1.0, "bad_words_ids": [], "suppress_tokens": [], "stop_strings": []},
        {"cache_implementation": "hybrid", "early_stopping": True, "length_penalty": 2, "compile_config": {"a": 1}},
        {"to_diff_dict": 1, "validate": 1, "update": [], "chat_format": "chatml"},
    ],
)
def test_what_asks_for_nothing_is_left_out(tmp_path: Path, raw: dict[str, Any]) -> None:
    assert generation_config_of(tmp_path, raw) == {}


def test_a_token_that_is_to_be_favoured_must_be_there(tmp_path: Path) -> None:
    for key, value in (
        ("bad_words_ids", [[1], [2, 96]]),
        ("sequence_bias", [[[96], 1.0]]),
        ("forced_bos_token_id", 96),
        ("forced_eos_token_id", [1, 96]),
    ):
        with pytest.raises(ModelFormatError, match=f"{key} at byte .* has token id 96; ids of this model are 0 to 95"):
            generation_config_of(tmp_path, {key: value})
