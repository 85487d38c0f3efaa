"""config.json: what is allowed, what is normalised, what is ignored, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import read_config
from tests.support.tiny import TinyLlama

BASE = TinyLlama().config("float32")


def config_of(tmp_path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return read_config(path)


def refused(tmp_path: Path, text: str | bytes) -> ModelFormatError:
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ModelFormatError) as caught:
        read_config(path)
    assert caught.value.file == str(path)
    return caught.value


def test_nulls_are_missing_keys(tmp_path: Path) -> None:
    config = config_of(tmp_path, BASE | {"head_dim": None, "num_key_value_heads": None, "pad_token_id": None})
    assert (config["head_dim"], config["num_key_value_heads"]) == (16, 4)
    assert "pad_token_id" not in config


def test_what_could_name_code_is_dropped(tmp_path: Path) -> None:
    evil = {
        "auto_map": {"AutoModelForCausalLM": "evil--modeling.Evil"},
        "custom_pipelines": {"x": {"impl": "evil.py"}},
        "_attn_implementation_internal": "evil/kernel",
        "_attn_implementation": "evil/kernel",
        "attn_implementation_internal": "evil/kernel",
        "_name_or_path": "/etc/passwd",
        "transformers_version": "9.9",
        "unheard_of": [[[[1]]]],
    }
    assert config_of(tmp_path, BASE | evil) == config_of(tmp_path, BASE)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("raw", "theta", "scaling"),
    [
        ({"rope_scaling": None}, 10000.0, None),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 10000.0, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": {"type": "default"}}, 10000.0, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        ({"rope_parameters": {"rope_theta": 5e5}}, 5e5, None),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            5e5,
            {"rope_type": "llama3", **LLAMA3},
        ),
        (
            {"rope_scaling": {"type": "llama3", "rope_type": "llama3", **LLAMA3}},
            10000.0,
            {"rope_type": "llama3", **LLAMA3},
        ),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "beta_fast": 32,
                    "unknown": "x",
                    "attention_factor": None,
                }
            },
            10000.0,
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0},
        ),
        (
            {"rope_scaling": {"rope_type": "freq_factors", "factors": [1.0, 2.0]}},
            10000.0,
            {"rope_type": "freq_factors", "factors": [1.0, 2.0]},
        ),
    ],
)
def test_rope_in_both_spellings(tmp_path: Path, raw: dict[str, Any], theta: float, scaling: Any) -> None:
    config = config_of(tmp_path, BASE | raw)
    assert config["rope_theta"] == theta
    assert config["rope_scaling"] == scaling
    assert "rope_parameters" not in config


@pytest.mark.parametrize(("given", "read"), [("torch.float16", "float16"), ("bfloat16", "bfloat16"), ("int4", None)])
def test_dtype(tmp_path: Path, given: str, read: str | None) -> None:
    raw = {key: value for key, value in BASE.items() if key != "torch_dtype"}
    assert config_of(tmp_path, raw | {"dtype": given}).get("dtype") == read
    assert config_of(tmp_path, raw | {"torch_dtype": given}).get("dtype") == read


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"model_type": None}, "model_type", "missing"),
    ({"model_type": 5}, "model_type", "string"),
    ({"model_type": "x" * 300}, "model_type", "1 to 256"),
    ({"hidden_size": None}, "hidden_size", "missing"),
    ({"hidden_size": 0}, "hidden_size", "whole number"),
    ({"hidden_size": -64}, "hidden_size", "whole number"),
    ({"hidden_size": 64.0}, "hidden_size", "whole number"),
    ({"hidden_size": "64"}, "hidden_size", "whole number"),
    ({"hidden_size": True}, "hidden_size", "whole number"),
    ({"hidden_size": 2**31}, "hidden_size", "whole number"),
    ({"hidden_size": 2**64}, "hidden_size", "whole number"),
    ({"hidden_size": [64]}, "hidden_size", "whole number"),
    ({"hidden_size": 66, "head_dim": None}, "hidden_size", "is not a multiple of"),
    ({"intermediate_size": 0}, "intermediate_size", "whole number"),
    ({"num_hidden_layers": 0}, "num_hidden_layers", "1 to 512"),
    ({"num_hidden_layers": 513}, "num_hidden_layers", "1 to 512"),
    ({"num_attention_heads": 0}, "num_attention_heads", "whole number"),
    ({"num_key_value_heads": 0}, "num_key_value_heads", "whole number"),
    ({"num_key_value_heads": 3}, "num_key_value_heads", "does not divide"),
    ({"num_key_value_heads": 8}, "num_key_value_heads", "does not divide"),
    ({"head_dim": 0}, "head_dim", "1 to 1024"),
    ({"head_dim": 1032}, "head_dim", "1 to 1024"),
    ({"vocab_size": 0}, "vocab_size", "1 to 4194304"),
    ({"vocab_size": (4 << 20) + 1}, "vocab_size", "1 to 4194304"),
    ({"max_position_embeddings": (16 << 20) + 1}, "max_position_embeddings", "1 to 16777216"),
    ({"rms_norm_eps": 0}, "rms_norm_eps", "from 1e-30"),
    ({"rms_norm_eps": 5e-324}, "rms_norm_eps", "from 1e-30"),
    ({"rope_theta": 1.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_theta", "above 1"),
    (
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 0.5}},
        "rope_parameters.rope_theta",
        "above 1",
    ),
    (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_slow": 5e-324}},
        "rope_scaling.beta_slow",
        "from 1e-06",
    ),
    ({"rms_norm_eps": -1e-5}, "rms_norm_eps", "from 1e-30"),
    ({"rms_norm_eps": 1.5}, "rms_norm_eps", "to 1"),
    ({"rms_norm_eps": "1e-5"}, "rms_norm_eps", "number"),
    ({"rope_theta": 0}, "rope_theta", "from 1e-06"),
    ({"rope_theta": 1e16}, "rope_theta", "to 1e+15"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings", "true or false"),
    ({"attention_bias": "no"}, "attention_bias", "true or false"),
    ({"hidden_act": ["silu"]}, "hidden_act", "string"),
    ({"architectures": "LlamaForCausalLM"}, "architectures", "list"),
    ({"architectures": [1]}, "architectures", "string"),
    ({"bos_token_id": 96}, "bos_token_id", "0 to 95"),
    ({"bos_token_id": -1}, "bos_token_id", "0 to 95"),
    ({"bos_token_id": [1]}, "bos_token_id", "0 to 95"),
    ({"eos_token_id": 96}, "eos_token_id", "0 to 95"),
    ({"eos_token_id": []}, "eos_token_id", "1 to 256"),
    ({"eos_token_id": [1, 96]}, "eos_token_id", "0 to 95"),
    ({"eos_token_id": [1, [2]]}, "eos_token_id", "0 to 95"),
    ({"pad_token_id": -2}, "pad_token_id", "0 to 95"),
    ({"rope_scaling": "linear"}, "rope_scaling", "object or null"),
    ({"rope_scaling": {"factor": 2.0}}, "rope_scaling", "no rope_type"),
    ({"rope_scaling": {"rope_type": 3}}, "rope_scaling", "string"),
    ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling", "has no factor"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor", "from 1e-06"),
    ({"rope_scaling": {"rope_type": "linear", "factor": [2]}}, "rope_scaling.factor", "number"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling", "has no low_freq_factor"),
    ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}}, "rope_scaling", "not below"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "rope_parameters.rope_theta", "from 1e-06"),
    ({"rope_scaling": {"rope_type": "freq_factors", "factors": 1.0}}, "rope_scaling.factors", "up to 512 numbers"),
    ({"rope_scaling": {"rope_type": "freq_factors", "factors": []}}, "rope_scaling.factors", "up to 512 numbers"),
    ({"rope_scaling": {"rope_type": "freq_factors", "factors": [1] * 513}}, "rope_scaling.factors", "up to 512"),
    ({"rope_scaling": {"rope_type": "freq_factors", "factors": [1, 0]}}, "rope_scaling.factors", "from 1e-06"),
    ({"rope_parameters": []}, "rope_parameters", "object or null"),
    ({"torch_dtype": 32}, "torch_dtype", "string"),
]


@pytest.mark.parametrize(("raw", "field", "words"), BAD)
def test_bad_values(tmp_path: Path, raw: dict[str, Any], field: str, words: str) -> None:
    text = json.dumps(BASE | raw)
    error = refused(tmp_path, text)
    assert error.field == field
    assert words in error.problem
    if raw.get(field.partition(".")[0]) is not None:
        assert error.offset is not None
        key = field.rpartition(".")[2]
        assert text[: error.offset].endswith(f'"{key}": ')


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", '{"__float__": "NaN"}'])
def test_numbers_that_no_size_is(tmp_path: Path, literal: str) -> None:
    text = json.dumps(BASE).replace("1e-05", literal)
    assert refused(tmp_path, text).offset == text.index(literal)


@pytest.mark.parametrize("literal", ["Infinity", '{"__float__": "Infinity"}'])
def test_a_number_without_end_where_nobody_asks(tmp_path: Path, literal: str) -> None:
    """As transformers writes a limit that is none (``time_step_limit``)."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BASE)[:-1] + f', "time_step_limit": [0.0, {literal}]}}', encoding="utf-8")
    assert read_config(path) == config_of(tmp_path, BASE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[]", "it must be a JSON object"),
        ('"llama"', "it must be a JSON object"),
        (b"\xff\xfe{\x00}\x00", "is not valid UTF-8"),
        (json.dumps(BASE)[:-1] + ', "hidden_size": 8}', "twice"),
        ('{"a":' + "[" * 64 + "]" * 64 + "}", "deeper than 64"),
        (b" " * ((1 << 20) + 1), "the maximum is 1048576"),
    ],
)
def test_bad_json(tmp_path: Path, text: str | bytes, words: str) -> None:
    assert words in refused(tmp_path, text).problem


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"head_dim": 12}, "multiples of 8"),
        ({"quantization_config": {"quant_method": "gptq"}}, "already quantized"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differs by layer type"),
        ({"model_type": "gpt2", "hidden_size": None}, "config.json: model type 'gpt2' is not supported"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, raw: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        config_of(tmp_path, BASE | raw)


def test_the_first_llamas_pad_token(tmp_path: Path) -> None:
    assert "pad_token_id" not in config_of(tmp_path, BASE | {"pad_token_id": -1})


def test_files_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="cannot be opened"):
        read_config(tmp_path / "config.json")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelFormatError, match="not a regular file"):
        read_config(tmp_path / "config.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="not a regular file"):  # and does not wait for a writer
        read_config(tmp_path / "pipe")


def test_heads_that_do_not_divide_the_hidden_size_are_named(tmp_path: Path) -> None:
    """transformers' config of a Llama refuses them too: after the weights were packed, and in words of its own."""
    with pytest.raises(UnsupportedModelError, match="hidden_size is 72, which is not a multiple of 5 attention"):
        config_of(
            tmp_path, BASE | {"hidden_size": 72, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 16}
        )
