"""Specs that a file contradicts: ModelFormatError with file and field, or a refusal by name; no tensor is read."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import family, model_types, spec_for
from ipex_lookahead.architectures.families import vision
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.gates import cases
from tests.support.family_configs import read_config
from tests.support.family_engines import load
from tests.support.family_table import LINEAR, LLAMA3, MINISTRAL, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, config_of, write_folder

pytestmark = pytest.mark.usefixtures("nothing_is_read")
Change = Callable[[dict[str, Any]], None]
EXPERTS = (
    "gpt_oss", "mixtral", "qwen3_moe", "olmoe", "qwen2_moe", "lfm2_moe", "qwen3_5_moe_text", "mellum", "afmoe",
    "granitemoe",
)  # fmt: skip
IN_GGUF = [one for one in model_types() if family(one).GGUF is not None and variants(one)[0].gguf]
PATTERNS = [
    one for one in model_types() if "layer_types" in family(one).KEYS.used and one not in ("llama", "nemotron_h")
]
"""Llama's is passed over by transformers, whatever its length; Nemotron-H's is what says how many layers there are."""
NO_ROPE = ("nemotron_h", "kimi_linear")


def folder_of(folder: Path, model_type: str, change: Change) -> Path:
    """The family's plainest model, its config (the part that holds the keys) changed."""
    write_folder(folder, build(model_type, variants(model_type)[0]))
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    inside = family(model_type).KEYS.inside
    change(config[inside] if inside else config)
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def refused(path: Path, *words: str) -> str:
    """What the error says, which names the file and one of the words."""
    with pytest.raises((ModelFormatError, UnsupportedModelError)) as error:
        load(path)
    said = str(error.value)
    assert str(path) in said
    assert any(word in said for word in words), said
    if isinstance(error.value, ModelFormatError):
        assert error.value.field
        assert error.value.problem
    return said


@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(8)
def test_a_missing_tensor_is_named(tmp_path: Path, model_type: str) -> None:
    """Each kind of tensor in turn: norms, biases, sinks, routers, experts."""
    folder = folder_of(tmp_path, model_type, lambda config: None)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if "layers.1." in name and "vision" not in name]:
        save_file({other: values for other, values in tensors.items() if other != name}, file, {"format": "pt"})
        refused(folder, name.rpartition("layers.")[2])


def size(config: dict[str, Any]) -> str:
    """The key of a head's size; with latents it is that of the part that is rotated."""
    return "qk_rope_head_dim" if "qk_rope_head_dim" in config else "head_dim"


@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(8)
def test_sizes_that_the_tensors_do_not_have_are_named(tmp_path: Path, model_type: str) -> None:
    for number, change in enumerate(
        (
            lambda config: config.update({size(config): (config.get(size(config)) or 16) + 8}),
            lambda config: config.update(num_key_value_heads=1 if config["num_key_value_heads"] > 1 else 2),
            lambda config: config.update(
                intermediate_size=config["intermediate_size"] + 32,
                moe_intermediate_size=40,
                shared_intermediate_size=40,
            ),
            lambda config: config.update(vocab_size=config["vocab_size"] + 1),
            lambda config: (
                config.update(num_hidden_layers=config["num_hidden_layers"] + 1)
                if "num_hidden_layers" in config
                else config["layers_block_type"].append("mlp")
            ),
        )
    ):
        refused(
            folder_of(tmp_path / str(number), model_type, change),
            "has shape", "no tensor has this name", "is missing", "layer_types", "no_rope_layers", "head_dim",
            "num_key_value_heads", "vocab_size_per_layer_input", "moe_intermediate_size",
        )  # fmt: skip


@pytest.mark.parametrize("model_type", [one for one in model_types() if one not in NO_ROPE])
@pytest.mark.rotating(8)
def test_an_unknown_rope_is_refused_by_name(tmp_path: Path, model_type: str) -> None:
    def change(config: dict[str, Any]) -> None:
        rope = config["rope_parameters"]
        rope.get("full_attention", rope)["rope_type"] = "spiral"

    assert "rope_type" in refused(folder_of(tmp_path, model_type, change), "spiral")


FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}
ROPES: dict[str, dict[str, Any]] = {
    "linear": LINEAR,
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0},
    "yarn": {**MINISTRAL, "attention_factor": 1.0, "truncate": True},
    "llama3": LLAMA3,
    "longrope": {"rope_type": "longrope", "attention_factor": 1.0, **FACTORS},
    "su": {"type": "su", **FACTORS},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0},
    "mrope": {"rope_type": "mrope", "mrope_section": [2, 3, 3]},
}
NUMBERS = st.floats(allow_nan=False) | st.integers(-2, 2) | st.just(10**30)
WRONG = (
    st.none()
    | st.booleans()
    | st.text(max_size=3)
    | NUMBERS
    | st.lists(st.none() | NUMBERS, max_size=3)
    | st.dictionaries(st.text(max_size=3), st.none(), max_size=1)
)
PLACES = ("rope_scaling", "rope_parameters", "full_attention", "sliding_attention")


@functools.cache
def plainest(model_type: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(config_of(model_type, variants(model_type)[0]).to_json_string(use_diff=False))
    return config


def refusal(file: Path, model_type: str, rope: Any, place: str = "rope_scaling") -> str | None:
    """What the error says of the family's plainest config with this rope, alone or as that of a kind of layers."""
    config = copy.deepcopy(plainest(model_type))
    inside = config[family(model_type).KEYS.inside] if family(model_type).KEYS.inside else config
    for key in ("rope_scaling", "rope_parameters"):
        inside.pop(key, None)
    if place in PLACES[:2]:
        inside[place] = rope
    else:
        plain = {"rope_type": "default", "rope_theta": 10000.0}
        inside["rope_parameters"] = {**dict.fromkeys(PLACES[2:], plain), place: rope}
    file.write_text(json.dumps(config), encoding="utf-8")
    try:
        spec_for(read_config(file), file=file)
    except (ModelFormatError, UnsupportedModelError) as error:
        return str(error)
    return None


OWN_FAMILIES = [one for one in model_types() if one not in vision.FAMILIES]


@pytest.mark.parametrize("model_type", OWN_FAMILIES)
@pytest.mark.rotating(12)
def test_a_missing_parameter_of_rope_scaling_is_named(tmp_path: Path, model_type: str) -> None:
    """Each key of each kind in turn: it has a default, or the error names file and key; nothing else is raised."""
    file = tmp_path / "config.json"
    for kind, rope in ROPES.items():
        whole = refusal(file, model_type, rope)
        assert whole is None or str(file) in whole, kind
        for key in rope:
            said = refusal(file, model_type, {one: rope[one] for one in rope if one != key})
            if said is not None:
                assert str(file) in said, (kind, key)
                assert whole is not None or ("rope_type" if key == "type" else key) in said, (kind, key)


@settings(max_examples=cases(10, 1000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(OWN_FAMILIES), st.sampled_from(sorted(ROPES)), st.sampled_from(PLACES), st.data())
def test_rope_scaling_of_wrong_types_is_an_error_of_ours(
    tmp_path: Path, model_type: str, kind: str, place: str, data: st.DataObject
) -> None:
    rope = ROPES[kind]
    changed = data.draw(st.dictionaries(st.sampled_from(sorted(rope)), WRONG, min_size=1, max_size=3) | WRONG)
    rope = {**rope, **changed} if isinstance(changed, dict) and {*changed} <= {*rope} else changed
    said = refusal(tmp_path / "config.json", model_type, rope, place)
    assert said is None or str(tmp_path) in said


@pytest.mark.parametrize("model_type", PATTERNS)
@pytest.mark.rotating(9)
def test_a_pattern_of_another_length_than_the_layers_is_refused(tmp_path: Path, model_type: str) -> None:
    for number, types in enumerate(([], ["full_attention"], ["full_attention"] * 9, ["full_attention", "spiral"])):
        change = lambda config, types=types: config.update(layer_types=types)  # noqa: E731
        refused(folder_of(tmp_path / str(number), model_type, change), "layer_types")


@pytest.mark.parametrize("model_type", [one for one in model_types() if "no_rope_layers" in family(one).KEYS.used])
def test_a_list_of_layers_without_rope_of_another_length_is_refused(tmp_path: Path, model_type: str) -> None:
    for number, layers in enumerate(([], [1], [1] * 9, [2, 1, 1, 1, 1])):
        change = lambda config, layers=layers: config.update(no_rope_layers=layers)  # noqa: E731
        refused(folder_of(tmp_path / str(number), model_type, change), "no_rope_layers")


@pytest.mark.parametrize("model_type", [one for one in model_types() if one in EXPERTS])
@pytest.mark.parametrize("count", [0, -1, 2, 9, 2**40])
@pytest.mark.rotating(10)
def test_a_count_of_experts_that_the_tensors_do_not_have_is_refused(
    tmp_path: Path, model_type: str, count: int
) -> None:
    def change(config: dict[str, Any]) -> None:
        for key in ("num_local_experts", "num_experts"):
            if key in config:
                config[key] = count

    refused(folder_of(tmp_path, model_type, change), "num_local_experts", "num_experts", "experts", "gate", "router")


@pytest.mark.parametrize("model_type", [one for one in model_types() if one in EXPERTS])
@pytest.mark.parametrize("used", [0, -1, 7, 2**40])
@pytest.mark.rotating(10)
def test_more_experts_a_token_than_there_are_is_refused(tmp_path: Path, model_type: str, used: int) -> None:
    folder = folder_of(tmp_path, model_type, lambda config: config.update(num_experts_per_tok=used))
    refused(folder, "num_experts_per_tok")


@pytest.mark.parametrize("model_type", IN_GGUF)
@pytest.mark.rotating(8)
def test_a_gguf_file_that_contradicts_itself_is_refused(tmp_path: Path, model_type: str) -> None:
    model = build(model_type, variants(model_type)[0])
    changes: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Any], tuple[str, ...]]] = {
        "missing": (lambda keys, tensors: tensors.pop(norm_of(tensors)), ("output_norm.weight", "embd_norm.weight")),
        "layers": (
            lambda keys, tensors: _set(keys, "block_count", 9),
            (
                "blk.",
                "sliding_window_pattern",
                "xielu.alpha",
                "layer_types",
                "recurrent_layers",
                "head_count",
                "feed_forward_length",
            ),
        ),
        "heads": (
            lambda keys, tensors: _set(keys, "attention.head_count", 8),
            ("blk.0.attn", "attn_k", "attn_q", "rope.dimension_count", "rope_freqs", "head_dim"),
        ),
        "width": (
            lambda keys, tensors: _set(keys, "embedding_length", 128),
            ("token_embd", "rope.dimension_count", "rope_freqs", "head_dim"),
        ),
    }
    if model_type in EXPERTS:
        changes |= {
            "no experts": (lambda keys, tensors: _set(keys, "expert_count", 0), ("expert", "ffn_gate")),
            "too many": (lambda keys, tensors: _set(keys, "expert_count", 9), ("expert", "ffn_gate_inp")),
            "none used": (lambda keys, tensors: _set(keys, "expert_used_count", 0), ("expert_used_count",)),
            "all used": (lambda keys, tensors: _set(keys, "expert_used_count", 9), ("expert_used_count",)),
        }
    for name, (change, words) in changes.items():
        file = tmp_path / f"{name}.gguf"
        write_gguf(file, model, change=change)
        refused(file, *words)


def norm_of(tensors: dict[str, Any]) -> str:
    """The norm before the head."""
    return next(name for name in tensors if name in ("output_norm.weight", "token_embd_norm.weight"))


def _set(keys: dict[str, Any], key: str, value: int) -> None:
    """A key's value, or each of a list, under whatever architecture."""
    found = [name for name in keys if name.endswith(f".{key}")]
    assert found, key
    one = keys[found[0]]
    one.value = [value] * len(one.value) if isinstance(one.value, list) else value
