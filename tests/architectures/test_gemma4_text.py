"""Gemma 4 for text: sizes by kind of layer in either spelling, what layers share, embeddings by layer, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.native.decoder import kv_bytes_per_token
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, spec_of, windows
from tests.support.family_engines import load
from tests.support.family_table import FULL, SLIDING, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, write_folder

KINDS = [SLIDING, SLIDING, FULL, SLIDING, FULL]
LARGE = {
    "num_hidden_layers": 5, "layer_types": KINDS, "head_dim": 16, "sliding_window": 7, "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
}  # fmt: skip
SMALL = {
    **LARGE, "attention_k_eq_v": False, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 24, "global_head_dim": 32,
}  # fmt: skip


def of(folder: Path, *without: str, **values: Any) -> Any:
    return spec_of(folder, "gemma4_text", *without, **values)


def test_what_the_hub_and_transformers_write_is_the_same(tmp_path: Path) -> None:
    hub = checked(tmp_path, "gemma4_text", **LARGE, global_head_dim=32, num_global_key_value_heads=1)
    sizes = {"head_dim": 32, "num_key_value_heads": 1}
    assert checked(tmp_path, "gemma4_text", **LARGE, per_layer_config={"2": sizes, "4": sizes}) == hub
    alike = checked(tmp_path, "gemma4_text", **LARGE, per_layer_config={})
    assert (alike["global_head_dim"], alike["num_global_key_value_heads"]) == (16, 2)
    assert checked(tmp_path, "gemma4_text", **LARGE)["global_head_dim"] == 512


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"per_layer_config": {"2": {"head_dim": 32}}}, UnsupportedModelError, "layer 4"),
        ({"per_layer_config": {"0": {"head_dim": 32}}}, UnsupportedModelError, "layer 0"),
        ({"per_layer_config": {"9": {"head_dim": 16}}}, UnsupportedModelError, "per_layer_config"),
        ({"per_layer_config": {"2": {"intermediate_size": 9}}}, ModelFormatError, "per_layer_config"),
        ({"per_layer_config": {"2": {"num_key_value_heads": 1}, "4": {"num_key_value_heads": 1}},
          "attention_k_eq_v": False}, UnsupportedModelError, "attention_k_eq_v is false"),
        ({"global_head_dim": 36}, UnsupportedModelError, "global_head_dim is 36"),
        ({"num_global_key_value_heads": 3}, ModelFormatError, "does not divide the 4"),
        ({"num_kv_shared_layers": 3}, ModelFormatError, "num_kv_shared_layers.*leaves no layer"),
        ({"num_kv_shared_layers": 6}, ModelFormatError, "num_kv_shared_layers"),
        ({"enable_moe_block": True}, ModelFormatError, "num_experts: is missing, but enable_moe_block is true"),
        ({"enable_moe_block": True, "num_experts": 4, "moe_intermediate_size": 8, "top_k_experts": 5}, ModelFormatError,
         "top_k_experts.*is 5, more than the 4 experts"),
        ({"enable_moe_block": True, "num_experts": 2000, "moe_intermediate_size": 8, "top_k_experts": 5},
         ModelFormatError, "num_experts.*is 2000"),
        ({"use_bidirectional_attention": "all"}, UnsupportedModelError, "use_bidirectional_attention"),
        ({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100}, ModelFormatError,
         "less than vocab_size 101"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(tmp_path: Path, values: dict[str, Any], error: type, words: str) -> None:
    shared = {"num_kv_shared_layers": 3, "num_hidden_layers": 5}
    kinds = {"layer_types": [SLIDING, SLIDING, SLIDING, SLIDING, FULL]} if values.items() <= shared.items() else {}
    with pytest.raises(error, match=words):
        checked(tmp_path, "gemma4_text", **{**LARGE, **kinds, **values})


def test_the_last_layer_sees_all_whatever_the_list_says(tmp_path: Path) -> None:
    assert windows(of(tmp_path, **{**LARGE, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING]}))[-1] is None
    assert windows(of(tmp_path, "layer_types", **{**LARGE, "num_hidden_layers": 7})) == [7] * 5 + [None] * 2


def test_shared_layers_keep_nothing_of_their_own(tmp_path: Path) -> None:
    """What a sequence takes is what its producers keep."""
    variant = next(one for one in variants("gemma4_text") if one.name == "e2b")
    engine = load(write_folder(tmp_path, build("gemma4_text", variant)))
    pages = -(-100 // 64)
    cache = engine.new_cache()
    cache.raw.fill_blank(100)
    assert cache.raw.bytes == pages * 64 * kv_bytes_per_token(engine.spec, "fp16")


def test_keys_of_layers_that_share_are_not_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The hub's files hold some, which transformers drops without a word."""
    variant = next(one for one in variants("gemma4_text") if one.name == "e2b")
    file = write_folder(tmp_path, build("gemma4_text", variant)) / "model.safetensors"
    tensors = load_file(file)
    for more, warned in (("layers.4.self_attn.k_proj", False), ("layers.4.self_attn.r_proj", True)):
        own = tensors["model.layers.1.self_attn.k_proj.weight"].clone()
        save_file({**tensors, f"model.{more}.weight": own}, file, {"format": "pt"})
        caplog.clear()
        open_checkpoint(tmp_path).close()
        assert (more in caplog.text) == warned


def of_file(folder: Path, change: Any, name: str = "e2b") -> Any:
    """The spec of a variant's GGUF file, whose keys and tensors were changed."""
    variant = next(one for one in variants("gemma4_text") if one.name == name)
    file = write_gguf(folder / "m.gguf", build("gemma4_text", variant), change=change)
    checkpoint = open_checkpoint(file)
    checkpoint.close()
    return checkpoint.spec


def test_a_gguf_file_says_sizes_by_layer(tmp_path: Path) -> None:
    def more(keys: dict[str, Any], tensors: dict[str, Any]) -> None:  # of a layer that shares, which the hub's hold
        tensors["blk.4.attn_k.weight"] = tensors["blk.1.attn_k.weight"]

    spec = of_file(tmp_path, more)
    assert [block.feed_forward.up.weight.shape[0] for block in spec.layers] == [96, 96, 96, 192, 192]
    assert [block.mixer.shared for block in spec.layers] == [None, None, None, 1, 2]
    large = of_file(tmp_path, lambda keys, tensors: None, "31b")
    assert [(one.mixer.head_dim, one.mixer.kv_heads, one.mixer.v is None) for one in large.layers] == [
        (16, 2, False), (16, 2, False), (32, 1, True), (32, 1, True),
    ]  # fmt: skip


def drop(name: str) -> Any:
    return lambda keys, tensors: tensors.pop(name)


def put(key: str, value: Any) -> Any:
    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys[f"gemma4.{key}"].value = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("31b", drop("rope_freqs.weight"), "rope_freqs.weight"),
        ("31b", drop("blk.1.attn_v.weight"), "blk.1.attn_v.weight"),
        ("31b", lambda keys, tensors: tensors["rope_freqs.weight"].__setitem__(1, 2.0), "other divisors"),
        ("31b", put("attention.head_count_kv", [2, 1, 1, 1]), "head_count_kv differs between layers of a kind"),
        ("31b", put("attention.head_count_kv", [2, 2, 1]), "head_count_kv"),
        ("31b", put("attention.head_count_kv", [2, 2, -1, -1]), "head_count_kv|num_key_value_heads"),
        ("31b", put("attention.value_length_swa", 24), "attention.value_length_swa is 24"),
        ("31b", put("rope.dimension_count_swa", 8), "rope.dimension_count_swa is 8"),
        ("31b", put("attention.key_length_swa", 0), "attention.key_length_swa.*is 0"),
        ("e2b", put("feed_forward_length", [96, 96, 96, 192, 96]), "feed_forward_length"),
        ("e2b", put("feed_forward_length", [96, 96, 64, 192, 192]), "feed_forward_length"),
        ("e2b", put("attention.shared_kv_layers", 9), "feed_forward_length|shared_kv_layers"),
    ],
)  # fmt: skip
def test_what_a_gguf_file_cannot_mean_is_refused(tmp_path: Path, name: str, change: Any, words: str) -> None:
    with pytest.raises((UnsupportedModelError, ModelFormatError), match=words):
        of_file(tmp_path, change, name)


def test_a_gguf_file_says_all_of_its_experts(tmp_path: Path) -> None:
    """Experts of which there are no tensors, and no number that a row goes to."""
    model = build("gemma4_text", variants("gemma4_text")[0])
    with pytest.raises(ModelFormatError, match="expert_used_count.*is missing, but"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", model, metadata={"gemma4.expert_count": 8}))
    more = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 16}
    file = write_gguf(tmp_path / "m.gguf", model, metadata={f"gemma4.{key}": value for key, value in more.items()})
    with pytest.raises(ModelFormatError, match="ffn_gate_inp.scale.*is missing"):
        open_checkpoint(file)


def test_sounds_and_images_are_read_past(tmp_path: Path) -> None:
    """The whole's folder holds a part that sees, and is that of the text part."""
    write_folder(tmp_path, build("gemma4", variants("gemma4")[0]))
    held = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert held["vision_config"]
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.close()
    assert checkpoint.config["model_type"] == "gemma4_text"
    assert not any("vision" in name for name in checkpoint.names())
    assert spec_for(checkpoint.config).per_layer is not None


def test_gemma_4_ends_with_its_turn_and_with_its_calls(tmp_path: Path) -> None:
    """Its files name one token, its makers' generation_config.json three."""
    model = build("gemma4_text", variants("gemma4_text")[0])
    size = model.config.vocab_size
    tokens = ["<pad>", "<eos>", "<|tool_response>", "<turn|>", *(f"t{i}" for i in range(4, size))]
    named = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": 3}
    found = open_checkpoint(write_gguf(tmp_path / "m.gguf", model, metadata=named)).generation_config
    assert found["eos_token_id"] == [3, 1, 2]
