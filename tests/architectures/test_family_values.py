"""Values of single families in a config or a GGUF file: what is refused, and what several spellings mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.architectures.rules import fill_query_scalar
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows
from tests.support.family_table import FAMILIES

SLIDING, FULL = "sliding_attention", "full_attention"
_MIXTURE = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
}  # fmt: skip
_LAYERS = {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 7}
BASES: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 16},
    "gemma2": {**_LAYERS, "num_hidden_layers": 4},
    "gemma3_text": {**_LAYERS, "num_hidden_layers": 7},
    "granitemoehybrid": {
        "num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": ["attention", "attention"],
        "position_embedding_type": "rope", "shared_intermediate_size": 96, "attention_multiplier": 0.125,
        "mamba_n_heads": 8, "time_step_limit": [0.0, {"__float__": "Infinity"}],
    },
    "qwen2_moe": _MIXTURE,
    "qwen3_next": _MIXTURE,
    "qwen3_moe": {"num_hidden_layers": 4, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    **{one: FAMILIES[one].base for one in ("deepseek_v2", "deepseek_v3", "ernie4_5_moe", "glm4_moe")},
    "deepseek_v3 routed": {**FAMILIES["deepseek_v3"].base, "n_routed_experts": 8},
}  # fmt: skip
RECURRENT = {"layer_types": ["mamba", "mamba"]}

UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("apertus", {"hidden_act": "silu"}, "hidden_act is 'silu'"),
    ("arcee", {"hidden_act": "silu"}, "hidden_act is 'silu'"),
    ("cohere2", {"use_qk_norm": True}, "use_qk_norm is True, which adds norms to queries and keys"),
    ("cohere2", {"use_parallel_block": False}, "use_parallel_block is False"),
    ("cohere2", {"rotary_pct": 0.5}, "rotary_pct is 0.5"),
    ("cohere2", {"head_dim": 32}, "head_dim is 32, but hidden_size implies heads of 16"),
    ("ernie4_5_moe", {"use_bias": True}, "use_bias is True, which adds biases"),
    ("exaone4", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern is 'LLLG', and layer_types is missing"),
    ("gemma", {"hidden_act": "silu"}, "hidden_act is 'silu'"),
    ("gemma", {"hidden_activation": "silu"}, "hidden_activation is 'silu', which names another activation"),
    ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'.*gelu_pytorch_tanh"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ("gemma2", {"num_attention_heads": 3, "num_key_value_heads": 1}, "not a multiple of 3 attention heads"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3_text", {"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
    ("gemma3_text", {"rope_parameters": {SLIDING: {"rope_type": "linear", "factor": 2.0}}},
     "sliding_attention has rope_type 'linear'"),
    ("gemma3_text", {"rope_parameters": {FULL: {"rope_type": "default", "partial_rotary_factor": 0.5}}},
     "partial_rotary_factor is 0.5"),
    ("gemma3_text", {"rope_parameters": {FULL: {"rope_type": "default"}},
     "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "remove one of them"),
    ("granitemoehybrid", {"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
    ("hunyuan_v1_dense", {"layer_types": [FULL] * 2}, "layer_types is"),
    ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob is True"),
    ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads is 2, but there are 4 heads"),
    ("deepseek_v3", {"qk_rope_head_dim": 15}, "rotated values must be even"),
    ("deepseek_v3", {"kv_lora_rank": 30}, "a multiple of 8"),
    ("deepseek_v3", {"kv_lora_rank": 1020}, "up to 1024"),
    ("olmo2", {"sliding_window": 9}, "sliding_window is 9"),
    ("olmo2", {"layer_types": [FULL, SLIDING]}, "layer_types is"),
    ("olmo2", {"hidden_act": "gelu"}, "hidden_act is 'gelu'.*'silu'"),
    ("olmo2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ("olmoe", {**_MIXTURE, "clip_qkv": 8.0}, "clip_qkv is 8.0, which clips"),
    ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
     "releases of transformers differ"),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, "max_window_layers is 2"),
    ("starcoder2", {"hidden_act": "silu"}, "hidden_act is 'silu'"),
]  # fmt: skip
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("cohere2", {"sliding_window_pattern": 0}, "sliding_window_pattern at byte .* is 0"),
    ("ernie4_5_moe", {"moe_k": 7}, "moe_k at byte .* is 7; there are 6"),
    ("ernie4_5_moe", {"num_experts": 5}, "num_experts at byte .* differs from moe_num_experts, which is 6"),
    ("ernie4_5_moe", {"moe_norm_min": 0.01}, "moe_norm_min at byte .* is 0.01; it must be a number from 0 to 1e-09"),
    ("ernie4_5_moe", {"moe_layer_interval": 0}, "moe_layer_interval at byte"),
    ("exaone4", {"sliding_window_pattern": "LLXG"}, "sliding_window_pattern.*'LLXG'"),
    ("exaone4", {"sliding_window_pattern": 0}, "is 0, but there is a sliding_window"),
    ("gemma2", {"layer_types": [FULL] * 5}, "names 5 layers; there are 4"),
    ("gemma2", {"layer_types": [FULL, "chunked_attention"] * 2}, "must be a list of"),
    ("gemma2", {"layer_types": [SLIDING] * 4, "sliding_window": None}, "no sliding_window"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar.*0"),
    ("gemma2", {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping.*0.0"),
    ("gemma2", {"sliding_window": 0}, "sliding_window.*from 1"),
    ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern.*from 1"),
    ("gemma3_text", {"rope_local_base_freq": -1.0}, "rope_local_base_freq.*-1.0"),
    ("gemma3_text", {"rope_parameters": {"rope_type": "linear", "factor": 8.0}},
     "rope_parameters.*full_attention and sliding_attention"),
    ("gemma3_text", {"rope_parameters": {FULL: {}, "other": {}}}, "must be an object"),
    ("gemma3_text", {"rope_parameters": {FULL: 7}}, "full_attention.*is 7"),
    ("gemma3_text", {"rope_parameters": {FULL: {"rope_theta": "x"}}},
     r"rope_parameters.full_attention.rope_theta at byte \d+.*'x'"),
    ("gemma3_text", {"rope_parameters": {SLIDING: {"rope_theta": 0}}},
     r"rope_parameters.sliding_attention.rope_theta at byte \d+"),
    ("granitemoehybrid", {"layer_types": [1, 2]}, "must be a list of linear_attention"),
    ("granitemoehybrid", {"layer_types": ["mamba", "conv"]}, "must be a list of linear_attention"),
    ("granitemoehybrid", {"shared_intermediate_size": 0}, "shared_intermediate_size"),
    ("granitemoehybrid", {"num_local_experts": 4}, "is 0; it must be from 1 to num_local_experts, 4"),
    ("granitemoehybrid", {"num_local_experts": 4, "num_experts_per_tok": 5}, "is 5; it must be from 1 to num_local"),
    ("granitemoehybrid", {"num_local_experts": 4096}, "num_local_experts"),
    ("granitemoehybrid", {"time_step_limit": [0.01, 0.1]}, "time_step_limit.*no agreed meaning"),
    ("granitemoehybrid", {"time_step_limit": [1, "x"]}, "time_step_limit"),
    ("granitemoehybrid", {**RECURRENT, "mamba_n_heads": 7}, "mamba_n_heads.* must be 128"),
    ("granitemoehybrid", {**RECURRENT, "mamba_n_groups": 3}, "does not divide 8 heads"),
    ("granitemoehybrid", {**RECURRENT, "mamba_d_state": 1 << 40}, "mamba_d_state"),
    ("granitemoehybrid", {**RECURRENT, "mamba_d_conv": 1000}, "mamba_d_conv"),
    ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank at byte"),
    ("deepseek_v3", {"kv_lora_rank": 1 << 40}, "kv_lora_rank at byte"),
    ("deepseek_v3", {"q_lora_rank": -1}, "q_lora_rank at byte"),
    ("deepseek_v3", {"num_attention_heads": 1 << 15, "num_key_value_heads": 1 << 15}, "num_attention_heads at byte"),
    ("deepseek_v3 routed", {"n_group": 3}, "n_group at byte"),
    ("deepseek_v3 routed", {"n_group": 4, "topk_group": 5}, "topk_group at byte"),
    ("deepseek_v3 routed", {"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "num_experts_per_tok at byte"),
    ("deepseek_v3 routed", {"n_routed_experts": 1024, "num_hidden_layers": 100, "n_group": 1, "topk_group": 1},
     "n_routed_experts at byte"),
    ("deepseek_v3 routed", {"num_local_experts": 7}, "num_local_experts at byte"),
    ("deepseek_v3 routed", {"num_nextn_predict_layers": 1000}, "num_nextn_predict_layers at byte"),
    ("olmo3", {"sliding_window": -4}, "sliding_window.*-4"),
    ("olmo3", {"rope_scaling": {"rope_type": "yarn"}}, "has no factor"),
    ("olmo3", {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 32, "factor": -1}},
     r"rope_parameters.factor at byte \d+"),
    ("olmo3", {"rope_parameters": {FULL: {}, SLIDING: {}, "others": {}}},
     "must be an object with full_attention and sliding_attention"),
    ("olmoe", {"num_experts": 5, "num_experts_per_tok": 6}, "num_experts_per_tok at byte .* is 6; there are 5"),
    ("qwen2_moe", {"mlp_only_layers": [7]}, "mlp_only_layers at byte .* names layer 7"),
    ("qwen3_next", {"mlp_only_layers": [7]}, "mlp_only_layers at byte .* names layer 7"),
    ("qwen3_moe", {"mlp_only_layers": [-1]}, "mlp_only_layers at byte"),
    ("qwen3_moe", {"mlp_only_layers": [True]}, "mlp_only_layers at byte"),
    ("qwen3_moe", {"mlp_only_layers": "1"}, "mlp_only_layers at byte"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step at byte"),
    ("qwen3_moe", {"num_experts": 0}, "num_experts at byte"),
    ("qwen3_moe", {"moe_intermediate_size": 0}, "moe_intermediate_size at byte"),
    ("starcoder2", {"norm_epsilon": -1}, "norm_epsilon at byte .* is -1"),
]  # fmt: skip
REFUSED = [(*row, UnsupportedModelError) for row in UNSUPPORTED] + [(*row, ModelFormatError) for row in WRONG]


@pytest.mark.parametrize(("model_type", "values", "words", "error"), REFUSED)
def test_a_value_of_a_config_is_refused_by_name(
    tmp_path: Path, model_type: str, values: dict[str, Any], words: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=words):
        checked(tmp_path, model_type.split()[0], **{**BASES.get(model_type, {}), **values})


IN_FILES: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("cohere2", {"cohere2.rope.freq_base_swa": 10.0}, UnsupportedModelError, "freq_base_swa is 10.0"),
    ("ernie4_5", {"ernie4_5.rope.dimension_sections": [4, 4, 4, 0]}, UnsupportedModelError,
     "has ernie4_5.rope.dimension_sections"),
    ("ernie4_5_moe", {"ernie4_5-moe.rope.dimension_sections": [4, 4, 4, 0]}, UnsupportedModelError,
     "has ernie4_5-moe.rope.dimension_sections"),
    ("exaone4", {"exaone4.rope.freq_base_swa": 10.0}, UnsupportedModelError, "freq_base_swa is 10.0"),
    ("gemma2", {"gemma2.attention.sliding_window_pattern": [True] * 4}, ModelFormatError, "has 4 values for 3 layers"),
    ("gemma2", {"gemma2.attention.sliding_window_pattern": 9999}, ModelFormatError, "sliding_window_pattern.*9999"),
    ("gemma2", {"gemma2.attention.sliding_window_pattern": "all"}, ModelFormatError, "sliding_window_pattern.*'all'"),
    ("gemma2", {"gemma2.rope.freq_base_swa": 500.0}, UnsupportedModelError, "freq_base_swa is 500.0"),
    ("gemma2", {"gemma2.attention.causal": False}, UnsupportedModelError, "attention.causal is False"),
    ("gemma3_text", {"gemma3.rope.freq_base_swa": -2.0}, ModelFormatError, r"rope.freq_base_swa at byte \d+.*-2"),
    ("glm4", {"glm4.rope.dimension_sections": [2, 2, 0, 0]}, UnsupportedModelError, "has glm4.rope.dimension_sections"),
    ("glm4", {"glm4.nextn_predict_layers": 1}, UnsupportedModelError, "glm4.nextn_predict_layers is 1"),
    ("hunyuan_v1_dense", {"hunyuan-dense.rope.dimension_sections": [2, 2, 2, 2]}, UnsupportedModelError,
     "has hunyuan-dense.rope.dimension_sections"),
    ("olmo3", {"olmo2.rope.freq_base_swa": 10.0}, UnsupportedModelError,
     "freq_base_swa is 10.0, but freq_base is 500000"),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "metadata", "error", "words"), IN_FILES)
def test_a_key_of_a_gguf_file_is_refused_by_name(
    tmp_path: Path, model_type: str, metadata: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        opened(tmp_path, model_type, metadata)


# ---- spellings and defaults that the variants of tests/support/family_table.py do not have ---------------------------


@pytest.mark.parametrize("name", ["gelu", "gelu_pytorch_tanh"])
def test_the_gelu_of_the_first_gemma_is_its_tanh_form(tmp_path: Path, name: str) -> None:
    assert checked(tmp_path, "gemma", head_dim=16, hidden_act=name)["hidden_act"] == "gelu_pytorch_tanh"


def test_the_rope_of_apertus_is_llama3_unless_said_otherwise(tmp_path: Path) -> None:
    assert checked(tmp_path, "apertus")["rope_scaling"]["rope_type"] == "llama3"
    plain = checked(tmp_path, "apertus", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    assert (plain["rope_scaling"], plain["rope_theta"]) == ({"rope_type": "default"}, 1e4)


def test_glm4_rotates_half_of_a_head_unless_said_otherwise(tmp_path: Path) -> None:
    for values, pairs in (({}, 4), ({"partial_rotary_factor": 1.0}, 8), ({"partial_rotary_factor": 0.25}, 2)):
        rope = spec_of(tmp_path, "glm4", head_dim=16, **values).layers[0].mixer.rope
        assert len(rope.frequencies) == pairs


@pytest.mark.parametrize(
    ("model_type", "values", "expected"),
    [
        ("cohere2", {"sliding_window": 9, "sliding_window_pattern": 2}, [9, None]),
        ("cohere2", {"sliding_window": 9, "num_hidden_layers": 5}, [9, 9, 9, None, 9]),
        ("exaone4", {"sliding_window": 9, "num_hidden_layers": 5}, [9, 9, 9, None, 9]),
        ("exaone4", {"sliding_window": None, "sliding_window_pattern": 0}, [None, None]),
        ("exaone4", {"sliding_window": 9, "sliding_window_pattern": "LLLG", "layer_types": [SLIDING, FULL]}, [9, None]),
        ("gemma2", {}, [7, None, 7, None]),
        ("gemma2", {"sliding_window": None}, [None] * 4),
        ("gemma3_text", {"sliding_window_pattern": 3}, [7, 7, None, 7, 7, None, 7]),
        ("gemma3_text", {"sliding_window_pattern": 2, "layer_types": [SLIDING] * 6 + [FULL]}, [7] * 6 + [None]),
        ("gemma3_text", {"sliding_window_pattern": 1}, [None] * 7),
        ("gemma3_text", {}, [7, 7, 7, 7, 7, None, 7]),
        ("olmo3", {"sliding_window": 9, "num_hidden_layers": 5}, [9, 9, 9, None, 9]),
        ("qwen2_moe", {"sliding_window": 9}, [None, None]),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 9, "layer_types": [FULL, SLIDING]}, [None, 9]),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, [8] * 4),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, [8] * 4),
        ("qwen3_moe", {"sliding_window": 8, "max_window_layers": 2}, [None] * 4),
    ],
)
def test_the_windows_of_a_config(
    tmp_path: Path, model_type: str, values: dict[str, Any], expected: list[int | None]
) -> None:
    config = checked(tmp_path, model_type, **{**BASES.get(model_type, {}), **values})
    assert "sliding_window_pattern" not in config or model_type == "exaone4"
    assert windows(spec_for(config)) == expected


@pytest.mark.parametrize(
    ("model_type", "key", "value", "expected"),
    [
        ("cohere2", "cohere2.attention.sliding_window_pattern", [True, False, True, False], [9, None, 9, None]),
        ("gemma2", None, None, [7, None, 7]),
        ("gemma2", "gemma2.attention.sliding_window_pattern", 1, [None] * 3),
        ("gemma2", "gemma2.attention.sliding_window_pattern", 0, [7] * 3),
        ("gemma2", "gemma2.attention.sliding_window_pattern", 3, [7, 7, None]),
        ("gemma2", "gemma2.attention.sliding_window_pattern", [True, True, False], [7, 7, None]),
        ("gemma3_text", "gemma3.attention.sliding_window", 0, [None] * 3),
    ],
)
def test_the_windows_of_a_gguf_file(
    tmp_path: Path, model_type: str, key: str | None, value: Any, expected: list[int | None]
) -> None:
    file = opened(tmp_path, model_type, {} if key is None else {key: value})
    assert windows(file.spec) == expected
    assert not file.unknown_keys


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": 5e5, "rope_local_base_freq": 300.0},
        {"rope_parameters": {FULL: {"rope_theta": 5e5}, SLIDING: {"rope_theta": 300.0}}},
        {"rope_parameters": {FULL: {"rope_theta": 5e5}}, "rope_local_base_freq": 300.0},
        {"rope_parameters": {FULL: None, SLIDING: {"type": "default", "rope_theta": 300.0}}, "rope_theta": 5e5},
    ],
)
def test_both_bases_of_gemma_3_in_every_spelling(tmp_path: Path, values: dict[str, Any]) -> None:
    config = checked(tmp_path, "gemma3_text", **BASES["gemma3_text"], **values)
    assert (config["rope_theta"], config["rope_local_base_freq"], config["rope_scaling"]) == (5e5, 300.0, None)


def test_what_a_gemma_2_leaves_out_is_as_transformers_has_it(tmp_path: Path) -> None:
    config = checked(tmp_path, "gemma2", "num_key_value_heads", "eos_token_id", "rms_norm_eps", num_attention_heads=8)
    assert (config["num_key_value_heads"], config["head_dim"], config["query_pre_attn_scalar"]) == (4, 256, 256)
    assert (config["eos_token_id"], config["sliding_window"], config["rms_norm_eps"]) == (1, 4096, 1e-6)


@pytest.mark.parametrize(("layers", "expected"), [(46, 144), (42, 128)])
def test_llama_cpp_knows_the_27b_by_its_depth(layers: int, expected: int) -> None:
    config = {"num_attention_heads": 32, "hidden_size": 4608, "head_dim": 128, "num_hidden_layers": layers}
    fill_query_scalar(config, 46)
    assert config["query_pre_attn_scalar"] == expected


def test_what_a_gguf_file_says_of_single_families(tmp_path: Path) -> None:
    gemma = {"gemma3.final_logit_softcapping": 30.0, "gemma3.rope.freq_base_swa": 777.0}
    file = opened(tmp_path, "gemma3_text", gemma)
    assert (file.spec.logit_softcap, file.config["rope_local_base_freq"]) == (30.0, 777.0)
    assert opened(tmp_path, "gemma3_text", {"gemma3.final_logit_softcapping": 0.0}).spec.logit_softcap is None
    assert opened(tmp_path, "exaone4", {"exaone4.rope.freq_base_swa": 10000.0}).config["rope_theta"] == 10000.0
    olmo = opened(tmp_path, "olmo3", {"olmo2.rope.scaling.yarn_attn_factor": 1.25})
    assert [block.mixer.rope.factor for block in olmo.spec.layers] == [1.0, 1.0, 1.0, 1.25]  # Hugging Face's factor
    qwen = opened(tmp_path, "qwen2_moe", {})  # which follow from the dense MLP's size
    assert (qwen.config["moe_intermediate_size"], qwen.config["shared_expert_intermediate_size"]) == (64, 80)
    assert opened(tmp_path, "starcoder2", {}).config["norm_epsilon"] == 1e-5


@pytest.mark.parametrize(("window", "family"), [(None, "olmo2"), (0, "olmo2"), (5, "olmo3")])
def test_the_window_tells_olmo_2_from_olmo_3(tmp_path: Path, window: int | None, family: str) -> None:
    file = opened(tmp_path, "olmo2", {} if window is None else {"olmo2.attention.sliding_window": window})
    assert file.config["model_type"] == file.spec.model_type == family
    assert file.config["architectures"] == [f"Olmo{family[-1]}ForCausalLM"]


def test_the_architecture_llama_is_told_apart_by_its_keys(tmp_path: Path) -> None:
    for model_type, expected in (("mistral", "llama"), ("mixtral", "mixtral"), ("llama", "llama")):
        file = opened(tmp_path, model_type, {})
        assert file.config["model_type"] == expected
        assert file.unknown_keys == []


@pytest.mark.parametrize("hybrid", [["attention", "mamba"], ["full_attention", "linear_attention"]])
def test_either_word_for_the_layers_of_granite_4(tmp_path: Path, hybrid: list[str]) -> None:
    config = checked(tmp_path, "granitemoehybrid", **BASES["granitemoehybrid"] | {"layer_types": hybrid})
    assert config["layer_types"] == [FULL, "mamba"]
    none = checked(tmp_path, "granitemoehybrid", **BASES["granitemoehybrid"] | {"layer_types": None})
    assert none["layer_types"] == ["mamba"] * 2
