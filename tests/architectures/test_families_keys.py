"""No key is passed over: what transformers' config class and model look at, and what llama.cpp's loader reads, is used,
without effect, or refused, for every family in the folder."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from ipex_lookahead.architectures import family, model_types
from ipex_lookahead.architectures.keys import GGUF_GIVEN, GIVEN, ConfigKeys
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import read_config
from tests.support.family_table import variants
from tests.support.tiny_families import build, config_of

METHODS = {
    "get_text_config", "is_heterogeneous", "json", "standardize", "standardize_rope_params", "to_dict",
    "use_return_dict", "validate_rope",
}  # fmt: skip
"""What transformers' code calls or asks of a config object that is no key; ``config.json`` is a file, and
``standardize`` a part's that sees."""
SHARED = ("modeling_rope_utils", "masking_utils", "cache_utils", "modeling_utils")
"""Modules that look at any model's config."""


def text_keys(model_type: str) -> ConfigKeys:
    """A family's keys; of a model with eyes those of the text part that its first variant has."""
    keys = family(model_type).KEYS
    return keys.parts[text_config(model_type).model_type] if keys.parts else keys


def text_config(model_type: str) -> Any:
    config = config_of(model_type, variants(model_type)[0])
    return config.get_text_config()


def listed(model_type: str) -> set[str]:
    keys = text_keys(model_type)
    return GIVEN | set(keys.used) | set(keys.all_neutral()) | set(keys.all_refused())


def keys_of_config(config: Any) -> set[str]:
    """The names that a config class takes, under every spelling, and what it writes."""
    kind = type(config)
    taken = set(inspect.signature(kind).parameters) - {"self", "kwargs"}
    old = {name for base in kind.__mro__ for name in re.findall(r'kwargs\.(?:get|pop)\(\s*"(\w+)"', _source(base))}
    written = set(config.to_dict()) - set(transformers.GenerationConfig().to_dict())
    names = taken | old | written | set(kind.attribute_map) | set(kind.attribute_map.values())
    return {name for name in names if not name.startswith("_")}


def keys_of_source(model_type: str) -> set[str]:
    """The attributes of a config that the family's model, the ropes, masks and caches look at."""
    model = build(model_type, variants(model_type)[0])
    text = getattr(model.model, "language_model", None) or getattr(model.model, "text_model", model)
    kinds = {type(module) for module in text.modules()} | {type(text), type(text).__mro__[1]}
    sources = [_source(kind) for kind in kinds]
    found = {name for source in sources for name in re.findall(r"\bconfig\.(\w+)", source)}
    modules = [inspect.getsource(importlib.import_module(f"transformers.{name}")) for name in SHARED]
    found |= set(re.findall(r"\bconfig\.(\w+)", modules[0]))
    for source in sources + modules:
        found |= set(re.findall(r'getattr\(\s*(?:\w+\.)*\w*config\w*,\s*"(\w+)"', source))
    return {name for name in found if not name.startswith("_")}


def _source(kind: type) -> str:
    return _classes(kind.__module__)[kind.__name__] if kind.__module__.startswith("transformers.models.") else ""


@cache
def _classes(module: str) -> dict[str, str]:
    """The source of each class; ``inspect`` would parse the module for every one of them."""
    text = inspect.getsource(importlib.import_module(module))
    lines, nodes = text.splitlines(), ast.parse(text).body
    return {
        one.name: "\n".join(lines[one.lineno - 1 : one.end_lineno]) for one in nodes if isinstance(one, ast.ClassDef)
    }


@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(18)
def test_every_key_of_transformers_is_in_one_list(model_type: str) -> None:
    """A family that transformers has and this package reads knows every key of it, also those of older spellings."""
    keys = text_keys(model_type)
    for one, two in itertools.combinations((set(keys.used), set(keys.all_neutral()), set(keys.all_refused())), 2):
        assert not one & two
    known = keys_of_config(text_config(model_type)) | keys_of_source(model_type)
    assert {"num_key_value_heads", "head_dim", "rope_parameters"} <= known
    assert known - METHODS - listed(model_type) == set()


@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(9)
def test_what_is_refused_is_refused_by_name_and_what_is_neutral_changes_nothing(
    tmp_path: Path, model_type: str
) -> None:
    for key, refusal in text_keys(model_type).all_refused().items():
        with pytest.raises(UnsupportedModelError, match=f"{key} is "):
            read_config(_config_file(tmp_path, model_type, {key: ["not", "any", "of", "these"]}))
        for value in refusal.unless:
            read_config(_config_file(tmp_path, model_type, {key: value}))
    plain = read_config(_config_file(tmp_path, model_type, {}))
    neutral = dict.fromkeys(text_keys(model_type).all_neutral(), "anything")
    assert read_config(_config_file(tmp_path, model_type, neutral)) == plain


@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(9)
def test_the_defaults_are_those_of_the_config_class(tmp_path: Path, model_type: str) -> None:
    """Of the keys that are used: a missing one means what transformers takes for it."""
    theirs = inspect.signature(type(text_config(model_type))).parameters
    ours = text_keys(model_type).defaults
    compared = [key for key in ours if key in theirs and theirs[key].default is not None]
    assert "max_position_embeddings" in compared
    epsilons = {"rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_eps", "layer_norm_epsilon"}
    assert epsilons & set(compared)
    assert "tie_word_embeddings" in compared or "tie_word_embeddings" not in theirs
    for key in compared:
        assert ours[key] == theirs[key].default, key


def _config_file(folder: Path, model_type: str, changes: dict[str, Any]) -> Path:
    config = json.loads(config_of(model_type, variants(model_type)[0]).to_json_string(use_diff=False))
    inside = config[family(model_type).KEYS.inside] if family(model_type).KEYS.inside else config
    inside.update(changes)
    config.update({key: value for key, value in changes.items() if key in family(model_type).KEYS.outer})
    ropes = inside.get("rope_parameters") or {}  # Nemotron-H has none
    for rope in (ropes, *ropes.values()):
        if isinstance(rope, dict):
            rope.update({key: value for key, value in changes.items() if key in rope})
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(9)
def test_values_of_no_type_at_all_are_errors_with_a_place(tmp_path: Path, model_type: str) -> None:
    """Every used key is checked: something that it cannot be is refused with the key's name, never taken."""
    keys = text_keys(model_type)
    for key in {*keys.used, "hidden_size", "num_attention_heads", "rms_norm_eps", "vocab_size"}:
        for value in (["of", "no kind"], "\x00", -3.5):
            if (key, value) == ("kda_lower_bound", -3.5):
                continue  # which is one
            file = _config_file(tmp_path, model_type, {key: value})
            with pytest.raises((ModelFormatError, UnsupportedModelError), match=key):
                read_config(file)


# ---- GGUF ----------------------------------------------------------------------------------------------------------

LOADER = """
context_length embedding_length embedding_length_out attention.causal pooling_type classifier.pooling_type
block_count nextn_predict_layers expert_count expert_used_count expert_group_count expert_group_used_count
feed_forward_length attention.head_count attention.head_count_kv rope.scaling.finetuned
rope.scaling.original_context_length rope.freq_base rope.scaling.type rope.scaling.factor rope.scale_linear
rope.scaling.attn_factor rope.scaling.alpha attention.key_length attention.value_length rope.dimension_count
attention.key_length_swa attention.value_length_swa rope.dimension_count_swa classifier.output_labels
attention.layer_norm_rms_epsilon vocab_size
""".split()
"""What llama.cpp asks a file of any of these architectures for (at the sources of llama-cpp-python 0.3.36)."""
_WINDOW = ["attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"]
_STATE = [f"ssm.{one}" for one in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")]
_DELTA = ["rope.dimension_sections", "attention.recurrent_layers", "full_attention_interval"]
_ROUTED = [
    "leading_dense_block_count", "expert_feed_forward_length", "expert_shared_count", "expert_weights_scale",
    "expert_weights_norm", "expert_gating_func",
]  # fmt: skip
_KIMI = [
    "ssm.conv_kernel", "kda.head_dim", "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla",
    "attention.value_length_mla",
]  # fmt: skip
OWN = {
    "llama": [],
    "qwen2": [],
    "qwen3": [],
    "mistral3": [
        "attention.temperature_scale", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_log_multiplier",
    ],
    "smollm3": [],
    "granite": [
        "logit_scale", "residual_scale", "embedding_scale", "attention.scale", "deepstack_mapping",
        "expert_shared_feed_forward_length",
    ],
    "phi3": ["attention.sliding_window"],
    "gemma2": [*_WINDOW, "attn_logit_softcapping", "final_logit_softcapping"],
    "gemma3": [*_WINDOW, "final_logit_softcapping"],
    "gemma4": [
        *_WINDOW, "final_logit_softcapping", "attention.shared_kv_layers", "embedding_length_per_layer_input",
        "expert_feed_forward_length",
    ],
    "olmo2": _WINDOW,
    "gpt-oss": [*_WINDOW, "expert_feed_forward_length"],
    "qwen2vl": ["rope.dimension_sections"],
    "qwen3vl": ["rope.dimension_sections", "n_deepstack_layers"],
    "qwen3moe": ["expert_feed_forward_length"],
    "qwen3vlmoe": ["expert_feed_forward_length", "rope.dimension_sections", "n_deepstack_layers"],
    "gemma": [],
    "olmoe": [],
    "qwen2moe": ["expert_feed_forward_length", "expert_shared_feed_forward_length"],
    "seed_oss": [],
    "exaone4": _WINDOW,
    "ernie4_5": ["rope.dimension_sections"],
    "ernie4_5-moe": [
        "rope.dimension_sections", "expert_feed_forward_length", "expert_shared_feed_forward_length",
        "expert_shared_count", "interleave_moe_layer_step", "leading_dense_block_count",
    ],
    "bailingmoe2": [*_ROUTED, "expert_shared_feed_forward_length"],
    "minicpm": ["embedding_scale", "residual_scale", "logit_scale"],
    "laguna": [*_ROUTED, "expert_shared_feed_forward_length", *_WINDOW],
    "glm4": ["rope.dimension_sections"],
    "arcee": [],
    "hunyuan-dense": ["rope.dimension_sections"],
    "starcoder2": [],
    "cohere2": [*_WINDOW, "logit_scale"],
    "apertus": [],
    "granitehybrid": [
        *_STATE, "logit_scale", "residual_scale", "embedding_scale", "attention.scale",
        "expert_shared_feed_forward_length",
    ],
    "lfm2": ["shortconv.l_cache"],
    "lfm2moe": [
        "shortconv.l_cache", "leading_dense_block_count", "expert_feed_forward_length", "expert_gating_func",
    ],
    "qwen35": [*_STATE, *_DELTA],
    "nemotron_h": [
        *_STATE, "attention.layer_norm_epsilon", "expert_feed_forward_length", "expert_shared_feed_forward_length",
        "expert_shared_count", "expert_weights_norm", "expert_weights_scale", "moe_latent_size",
    ],
    "glm4moe": [*_ROUTED, "rope.dimension_sections"],
    "deepseek2": [
        *_ROUTED, "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla",
        "attention.value_length_mla", "rope.scaling.yarn_log_multiplier", "attention.temperature_scale",
        "attention.temperature_length",
    ],
    "falcon-h1": _STATE,
    "kimi-linear": [*_ROUTED, *_KIMI],
    "bailingmoe3": [
        *_ROUTED, *_KIMI, "rope.dimension_sections", "kda.safe_gate", "kda.gate_lower_bound",
        "expert_shared_feed_forward_length", "swiglu_clamp_exp", "swiglu_clamp_shexp",
    ],
    "qwen3next": [*_STATE, *_DELTA[1:], "expert_feed_forward_length", "expert_shared_feed_forward_length"],
    "granitemoe": [
        "logit_scale", "residual_scale", "embedding_scale", "attention.scale", "expert_shared_feed_forward_length",
    ],
    "granite_swa": [
        *_WINDOW[:2], "logit_scale", "residual_scale", "embedding_scale", "attention.scale", "deepstack_mapping",
        "attention.rope_pattern", "expert_shared_feed_forward_length",
    ],
    "muse-glimmer": [*_WINDOW, "final_logit_softcapping", "logit_scale"],
    "mellum": [*_WINDOW, "expert_feed_forward_length"],
    "afmoe": [*_WINDOW, *_ROUTED],
    "qwen35moe": [*_STATE, *_DELTA, "expert_feed_forward_length", "expert_shared_feed_forward_length"],
}  # fmt: skip
"""What it asks one architecture for besides."""
CONVERTER = """
rope.scaling.yarn_ext_factor rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow
attention.layer_norm_epsilon tensor_data_layout
""".split()
"""What converters write beside that, for any of them."""


@pytest.mark.parametrize("model_type", [one for one in model_types() if family(one).GGUF])
@pytest.mark.rotating(9)
def test_every_key_of_llama_cpp_is_in_one_list(model_type: str) -> None:
    gguf = family(model_type).GGUF
    used = GGUF_GIVEN | set(gguf.used.values())
    tables = (used, set(gguf.all_neutral()), set(gguf.all_refused()))
    for one, two in itertools.combinations(tables, 2):
        assert not one & two
    asked = {*LOADER, *OWN[gguf.architecture], *CONVERTER}
    assert asked - set().union(*tables) == set()
