"""Arguments shared with transformers and ipex-llm: supported, harmless, or refused by name with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.hf.ipex_llm_names.arguments import (
    ONLY_DEFAULT,
    WITHOUT_EFFECT,
    check_config,
    shared_arguments,
    wanted_format,
)
from tests.support.tiny import write_tiny_llama


def take(**given):
    return shared_arguments("from_pretrained", given, ("load_in_4bit", "load_in_8bit", "threads"))


@pytest.mark.parametrize("name", ONLY_DEFAULT)
def test_defaults_are_accepted_and_everything_else_is_refused_with_what_to_do(name):
    for value in ONLY_DEFAULT[name].unless:
        assert take(**{name: value}).others == {name: value}
    for value in ("something", 7, ["x"], not ONLY_DEFAULT[name].unless[0]):
        if value in ONLY_DEFAULT[name].unless:
            continue
        with pytest.raises(InputError, match=f"{name}=.* only, not") as caught:
            take(**{name: value})
        assert len(caught.value.hint.split()) >= 3


def test_one_is_not_true():
    with pytest.raises(InputError, match="pipeline_parallel_stages=1 only, not True"):
        take(pipeline_parallel_stages=True)


def test_what_changes_nothing_takes_any_value():
    for name in WITHOUT_EFFECT:
        for value in (None, True, False, "eager"):
            assert take(**{name: value}).others == {name: value}


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("load_in_5bit", "load_in_"), ("trust_remote_cod", "trust_remote_code"), ("revison", "revision")],
)
def test_a_misspelt_name_gets_the_nearest_one(wrong, near):
    with pytest.raises(InputError, match=f"{wrong}.*did you mean '{near}"):
        take(**{wrong: True})
    with pytest.raises(InputError, match="'zzz'; its own arguments are load_in_4bit"):
        take(zzz=1)


def test_the_hubs_arguments_become_options(tmp_path):
    hub = take(
        revision="v1", cache_dir=tmp_path, token="hf_x", local_files_only=True, force_download=False, subfolder="a"
    ).hub
    assert (hub.revision, hub.cache_dir, hub.token, hub.local_files_only, hub.force_download, hub.subfolder) == (
        "v1", str(tmp_path), "hf_x", True, False, "a",
    )  # fmt: skip
    assert take(use_auth_token=True).hub.token is True
    assert take(token=None, use_auth_token=None, revision=None).hub.token is None
    with pytest.raises(InputError, match="use_auth_token differ"):
        take(token="a", use_auth_token="b")
    for wrong in ({"revision": 3}, {"local_files_only": "yes"}, {"token": 5}, {"subfolder": "../x"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            take(**wrong)


def test_three_ways_of_naming_a_format():
    assert wanted_format(None) is None
    assert wanted_format("bf16") == "bf16"
    assert wanted_format(None, load_in_4bit=True) == wanted_format("sym_int4", load_in_4bit=True) == "sym_int4"
    assert wanted_format(None, load_in_8bit=True) == "sym_int8"
    with pytest.raises(InputError, match="load_in_4bit means sym_int4, but load_in_low_bit is 'sym_int8'"):
        wanted_format("sym_int8", load_in_4bit=True)
    with pytest.raises(InputError, match="load_in_8bit means sym_int8, but load_in_4bit"):
        wanted_format(None, load_in_4bit=True, load_in_8bit=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def test_a_config_that_says_the_same_passes(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    config.use_cache = False
    config.torch_dtype = "float16"
    for same in (None, config, folder, str(folder / "config.json"), json.loads((folder / "config.json").read_text())):
        check_config(same, folder)
    check_config(transformers.AutoConfig.from_pretrained(folder).to_dict(), folder)  # with defaults that the file lacks


def test_a_config_that_says_something_else_is_refused_by_key(folder, tmp_path):
    config = transformers.AutoConfig.from_pretrained(folder)
    config.num_hidden_layers = 1
    with pytest.raises(InputError, match="num_hidden_layers=1, and the checkpoint num_hidden_layers=2") as caught:
        check_config(config, folder)
    assert "config.json" in caught.value.hint
    raw = json.loads((folder / "config.json").read_text())
    with pytest.raises(InputError, match="rope_theta=5"):
        check_config({**raw, "rope_theta": 5.0}, folder)
    with pytest.raises(InputError, match="rms_norm_eps"):
        check_config({key: value for key, value in raw.items() if key != "rms_norm_eps"}, folder)
    other = write_tiny_llama(tmp_path / "other", heads=2, kv_heads=1)
    with pytest.raises(InputError, match="head"):
        check_config(other, folder)
    with pytest.raises(InputError, match="model_type"):
        check_config(transformers.GPT2Config(), folder)
    for odd in ({"rope_scaling": "x"}, {"id2label": 3}, {"rope_parameters": [1]}, {"layer_types": ["x"]}):
        with pytest.raises(InputError, match=next(iter(odd))):
            check_config({**raw, **odd}, folder)
    with pytest.raises(InputError, match="config is a int"):
        check_config(3, folder)
    with pytest.raises(ModelFormatError, match="config.json"):
        check_config(tmp_path / "absent", folder)
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(InputError, match="contains its own"):
        check_config(config, file)
