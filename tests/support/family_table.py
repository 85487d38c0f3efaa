"""Every family here with its tiny random models: a base of sizes, and variants with every switch on and off.

A family is a row of ``FAMILIES``; ``tiny_families.py`` builds and saves them. The table is one file of more than 500
lines because every test of families iterates over all rows; about 50 files of a dozen lines would replace it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

VOCAB = 101
CONTEXT = 256
TEXT = 57
"""Tokens of a text that logits are compared on: more than any window, and than any original context, of the table."""
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
ODD = {"hidden_size": 72, "intermediate_size": 100, "num_attention_heads": 3, "num_key_value_heads": 1}
"""Nothing that 32 divides, heads of 24 in one group."""
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 48}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
MINISTRAL = {
    **YARN, "original_max_position_embeddings": 16, "factor": 12.0, "beta_fast": 4.0, "beta_slow": 1.0,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5,
}  # fmt: skip
SLIDING, FULL, LINEAR_ATTENTION = "sliding_attention", "full_attention", "linear_attention"


@dataclass(frozen=True, slots=True)
class Variant:
    """A family's model: ``values`` go over the base of the family.

    Attributes:
        gguf: whether a GGUF file of llama.cpp's words can say all of it.
        llama_cpp: whether llama.cpp computes what such a file says.
        why: why not, for both.
    """

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    gguf: bool = True
    llama_cpp: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """A family: the ``model_type``'s config class, what every variant starts from, and the variants, plainest first."""

    config: str
    base: dict[str, Any]
    variants: tuple[Variant, ...]


def _longrope(original: int, **more: Any) -> dict[str, Any]:
    """Six pairs: heads of 16, three quarters rotated."""
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": original,
            "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5], "long_factor": [1.0, 1.5, 3.0, 6.0, 12.0, 20.0], **more,
        },
    }  # fmt: skip


def _layered(full: dict[str, Any], local: float) -> dict[str, Any]:
    return {"rope_parameters": {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": local}}}


_APART = {"head_dim": 24}
_TIED = {"tie_word_embeddings": True}
_ROUTED = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}  # fmt: skip
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_GEMMA = {
    **SIZES, "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 7, "rms_norm_eps": 1e-6,
}  # fmt: skip
_GEMMA4 = {
    **SIZES, "model_type": "gemma4_text", "num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, FULL, FULL],
    "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "sliding_window": 7, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 3.0, "rms_norm_eps": 1e-6,
}  # fmt: skip
_UNIFIED = {
    **{key: value for key, value in _GEMMA4.items() if key != "hidden_size_per_layer_input"},
    "model_type": "gemma4_unified_text",
}  # fmt: skip
"""Of Gemma 4 12B, which has no keys of per-layer embeddings."""
_PER_LAYER = {
    "num_hidden_layers": 5, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL], "num_kv_shared_layers": 2,
    "attention_k_eq_v": False, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCAB,
}  # fmt: skip
"""Of Gemma 4's small models."""
_GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 48}
_VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip

_QUARTER = {**_PLAIN, "rope_theta": 300.0, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 1]}
_DELTA = {
    **SIZES, **_APART, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "rope_parameters": _QUARTER,
}  # fmt: skip
"""Delta nets with two heads of values to one of keys, attention in the last layer; llama.cpp has one size of heads."""
_DELTA_ODD = {
    **ODD, **_TIED, "head_dim": 24, "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 12,
    "linear_value_head_dim": 12, "linear_conv_kernel_dim": 3, "num_hidden_layers": 3,
    "layer_types": [FULL, LINEAR_ATTENTION, LINEAR_ATTENTION],
    "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2]},
}  # fmt: skip
_NEXT, _NEXT_ODD = (
    {**of, "rope_parameters": {key: value for key, value in of["rope_parameters"].items() if key != "mrope_section"}}
    for of in (_DELTA, _DELTA_ODD)
)
_DELTA_EXPERTS = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 64,
}  # fmt: skip
_DELTA_EYES = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4,
    "num_position_embeddings": 16,
}  # fmt: skip
_INSIDE = {key: value for key, value in _DELTA.items() if key not in SIZES or value != SIZES[key]}
_SHORT = {
    **{key: value for key, value in SIZES.items() if key != "rms_norm_eps"}, "norm_eps": 1e-5, "num_hidden_layers": 3,
    "layer_types": ["conv", FULL, "conv"], "tie_word_embeddings": False,
}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16}
_NEMOTRON = {
    **{key: value for key, value in SIZES.items() if key not in ("rms_norm_eps", "num_hidden_layers")},
    "layer_norm_epsilon": 1e-5, "head_dim": 16, "mamba_num_heads": 6, "mamba_head_dim": 8, "n_groups": 2,
    "ssm_state_size": 16, "layers_block_type": [LINEAR_ATTENTION, "mlp", FULL, LINEAR_ATTENTION],
}  # fmt: skip
_KDA = {
    "num_hidden_layers": 3, "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 40, "n_shared_experts": 1, "routed_scaling_factor": 1.8, "kv_lora_rank": 40,
    "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 20,
    "layer_types": [LINEAR_ATTENTION, LINEAR_ATTENTION, FULL],
}  # fmt: skip
_NEMOTRON_EXPERTS = {
    "layers_block_type": [LINEAR_ATTENTION, "moe", FULL, "moe"], "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 72,
    "routed_scaling_factor": 2.5,
}  # fmt: skip
_GRID = {"image_grid_pinpoints": [[28, 28], [28, 56]]}


def _seeing(
    kind: str,
    part: str,
    vision: dict[str, Any],
    more: dict[str, Any] | None = None,
    *,
    gguf: bool = False,
    **inside: Any,
) -> Family:
    """A model that sees: its text part with a head of its own, and with its embedding for one."""
    text = {**SIZES, "model_type": part, **inside}
    why = "its GGUF file is its text part's"
    tied = {"tie_word_embeddings": True, "text_config": {**text, **_TIED}}
    return Family(
        kind,
        {"vision_config": vision, "tie_word_embeddings": False, "text_config": text, **(more or {})},
        (Variant("text part", gguf=gguf, why=why), Variant("tied", tied, gguf=gguf, why=why)),
    )


_GRANITE_MULTIPLIERS = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 5.0, "attention_multiplier": 0.125,
}  # fmt: skip
_GRANITE_EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 48}
_MUSE = {
    **SIZES, "model_type": "muse_glimmer_text", "head_dim": 16, "num_hidden_layers": 5, "sliding_window": 7,
    "qk_scale_factor": 1.5, "rope_parameters": {**_PLAIN, "rope_theta": 500.0},
}  # fmt: skip
_SWASH = {
    **SIZES, **_GRANITE_MULTIPLIERS, "num_hidden_layers": 5, "sliding_window": 7,
    "rope_parameters": {**_PLAIN, "rope_theta": 300.0},
}  # fmt: skip
"""Of Granite with windows."""


FAMILIES: dict[str, Family] = {
    "llama": Family(
        "LlamaConfig",
        SIZES,
        (
            Variant("plain"),
            Variant("llama3 biased odd tied", {**ODD, **_TIED, "rope_parameters": LLAMA3, "attention_bias": True,
                                               "mlp_bias": True}),
            Variant("yarn apart", {**_APART, "rope_parameters": YARN}),
            Variant("linear", {"rope_parameters": LINEAR}),
        ),
    ),
    "qwen2": Family(
        "Qwen2Config",
        SIZES,
        (
            Variant("plain", {"rope_parameters": {**_PLAIN, "rope_theta": 1e6}}),
            Variant("windows", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1,
                                "num_hidden_layers": 3}, gguf=False, why="a window on some layers has no word"),
            Variant("yarn odd tied", {**ODD, **_TIED, "rope_parameters": YARN}),
            Variant("pattern", {"layer_types": [SLIDING, FULL, SLIDING], "num_hidden_layers": 3,
                                "use_sliding_window": True, "sliding_window": 9}, gguf=False, why="as above"),
            Variant("apart", _APART, gguf=False, why="llama.cpp's qwen2 has heads of hidden/heads"),
        ),
    ),
    "qwen3": Family(
        "Qwen3Config",
        {**SIZES, **_APART},
        (
            Variant("plain", {"rope_parameters": {**_PLAIN, "rope_theta": 1e6}}),
            Variant("windows biased", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1,
                                       "attention_bias": True}, gguf=False, why="no window, no output bias"),
            Variant("yarn odd tied", {**ODD, **_TIED, "rope_parameters": YARN}),
            Variant("pattern", {"layer_types": [SLIDING, FULL, SLIDING], "num_hidden_layers": 3,
                                "use_sliding_window": True, "sliding_window": 9}, gguf=False, why="no window"),
        ),
    ),
    "mistral": Family(
        "MistralConfig",
        {**SIZES, "sliding_window": None},
        (
            Variant("plain"),
            Variant("window apart", {**_APART, "sliding_window": 9}, gguf=False, why="its files say llama: no window"),
            Variant("odd tied", {**ODD, **_TIED, "rope_parameters": {**_PLAIN, "rope_theta": 1e6}}),
            Variant("yarn apart", {**_APART, "rope_parameters": YARN}),
            Variant("uneven", {**_APART, "num_attention_heads": 6, "num_key_value_heads": 3}),
        ),
    ),
    "ministral3": Family(
        "Ministral3Config",
        {**SIZES, **_APART, "rope_parameters": MINISTRAL},
        (
            Variant("plain"),
            Variant("odd tied mscale", {**ODD, **_TIED, "rope_parameters": {**MINISTRAL, "mscale_all_dim": 0.5}}),
            Variant("window", {"sliding_window": 9}, gguf=False, why="mistral3 has no window"),
            Variant("linear", {"rope_parameters": {**LINEAR, "llama_4_scaling_beta": 0.3,
                               "original_max_position_embeddings": 16}}, gguf=False, why="always yarn"),
        ),
    ),
    "smollm3": Family(
        "SmolLM3Config",
        {**SIZES, "num_hidden_layers": 5},
        (
            Variant("plain"),
            Variant("windows biased untied", {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1],
                    "use_sliding_window": True, "sliding_window": 9, "attention_bias": True, "mlp_bias": True,
                    "tie_word_embeddings": False}, gguf=False, why="every 4th layer has no rope; no window, no bias"),
            Variant("yarn odd", {**ODD, "rope_parameters": YARN}),
            Variant("interval", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}, gguf=False, why="always 4"),
            Variant("pattern", {"num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING],
                                "use_sliding_window": True, "sliding_window": 9}, gguf=False, why="no window"),
        ),
    ),
    "granite": Family(
        "GraniteConfig",
        {**SIZES, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 5.0,
         "attention_multiplier": 0.125},
        (
            Variant("plain"),
            Variant("odd tied biased", {**ODD, **_TIED, "attention_bias": True, "mlp_bias": True,
                                        "rope_parameters": LINEAR}),
            Variant("multipliers of one", {"embedding_multiplier": 1.0, "residual_multiplier": 1.0,
                                           "logits_scaling": 1.0, "attention_multiplier": 0.25}),
            Variant("yarn", {"rope_parameters": YARN}),
        ),
    ),
    "granite_swa": Family(
        "GraniteSWAConfig",
        _SWASH,
        (
            Variant("plain"),
            Variant("bases by layer, odd biased untied", {**ODD, "tie_word_embeddings": False, "attention_bias": True,
                    "mlp_bias": True, "num_hidden_layers": 3, "layer_types": [SLIDING, SLIDING, FULL],
                    "layer_rope_theta": [0, 500.0, 10000.0],
                    "rope_parameters": LINEAR}, gguf=False, why="one base for all layers"),
            Variant("yarn odd", {**ODD, "rope_parameters": YARN, "num_hidden_layers": 3,
                    "layer_types": [SLIDING, FULL, SLIDING]}),
        ),
    ),
    "granitemoe_swa": Family(
        "GraniteMoeSWAConfig",
        {**_SWASH, **_GRANITE_EXPERTS},
        (
            Variant("plain", {"shared_intermediate_size": 56}),
            Variant("bases by layer, odd biased tied", {**ODD, **_TIED, "attention_bias": True, "num_hidden_layers": 3,
                    "num_local_experts": 4, "intermediate_size": 40, "layer_types": [SLIDING, FULL, SLIDING],
                    "layer_rope_theta": [300.0, 0, 300.0],
                    "rope_parameters": LINEAR}, gguf=False, why="one base for all layers"),
            Variant("experts alone, odd", {**ODD, "intermediate_size": 40, "rope_parameters": LINEAR}),
        ),
    ),
    "granitemoe": Family(
        "GraniteMoeConfig",
        {**SIZES, **_GRANITE_MULTIPLIERS, **_GRANITE_EXPERTS},
        (
            Variant("plain"),
            Variant("odd tied biased", {**ODD, **_TIED, "attention_bias": True, "num_local_experts": 4,
                    "intermediate_size": 40, "rope_parameters": LINEAR}),
            Variant("multipliers of one", {**dict.fromkeys(_GRANITE_MULTIPLIERS, 1.0), "attention_multiplier": 0.3,
                    "num_experts_per_tok": 3, "rope_parameters": YARN}),
        ),
    ),
    "granitemoeshared": Family(
        "GraniteMoeSharedConfig",
        {**SIZES, **_GRANITE_MULTIPLIERS, **_GRANITE_EXPERTS, "shared_intermediate_size": 72},
        (
            Variant("plain"),
            Variant("odd tied biased", {**ODD, **_TIED, "attention_bias": True, "num_local_experts": 4,
                    "intermediate_size": 40, "shared_intermediate_size": 56, "rope_parameters": LINEAR}),
            Variant("experts alone", {"shared_intermediate_size": 0}, gguf=False, why="its file is granitemoe's"),
        ),
    ),
    "granitemoehybrid": Family(
        "GraniteMoeHybridConfig",
        {**SIZES, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 5.0, "mamba_n_heads": 8,
         "attention_multiplier": 0.125, "num_local_experts": 0, "shared_intermediate_size": 96,
         "position_embedding_type": "rope", "layer_types": [FULL, FULL]},
        (
            Variant("plain"),
            Variant("odd tied biased", {**ODD, **_TIED, "attention_bias": True, "shared_intermediate_size": 100,
                                        "rope_parameters": LINEAR}),
            Variant("no rope, an MLP of another size", {"position_embedding_type": None,
                    "shared_intermediate_size": 160}, gguf=False, why="dense files have rope, and one size"),
            Variant("recurrent", {**_MAMBA, "position_embedding_type": None, "num_hidden_layers": 3,
                    "layer_types": [LINEAR_ATTENTION, FULL, LINEAR_ATTENTION]}),
            Variant("recurrent, experts, odd, tied", {**ODD, **_TIED, **_MAMBA, "mamba_n_heads": 6, "mamba_d_state": 12,
                    "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40, "num_hidden_layers": 3,
                    "shared_intermediate_size": 56, "layer_types": [LINEAR_ATTENTION, LINEAR_ATTENTION, FULL]}),
            Variant("recurrent, biased", {**_MAMBA, "mamba_proj_bias": True, "mamba_d_conv": 3, "attention_bias": True,
                    "layer_types": [LINEAR_ATTENTION, FULL]}, gguf=False, why="no biases"),
        ),
    ),
    "falcon_h1": Family(
        "FalconH1Config",
        {**SIZES, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
         "embedding_multiplier": 3.0, "lm_head_multiplier": 0.4, "key_multiplier": 1.6, "attention_in_multiplier": 1.3,
         "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.7,
         "mlp_multipliers": [1.5, 0.6], "ssm_multipliers": [0.6, 1.5, 0.7, 1.4, 0.5]},
        (
            Variant("plain"),
            Variant("odd tied normed, gate first", {**ODD, **_TIED, "head_dim": 24, "mamba_d_ssm": None,
                    "mamba_d_state": 12, "mamba_d_conv": 3, "mamba_rms_norm": True,
                    "mamba_norm_before_gate": False, "embedding_multiplier": 1.0, "lm_head_multiplier": 1.0,
                    "rope_parameters": LINEAR}),
            Variant("biased, normed, gate last", {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True,
                    "projectors_bias": True, "attention_in_multiplier": 1.0, "ssm_in_multiplier": 1.0,
                    "mamba_rms_norm": True, "mamba_norm_before_gate": True, "mamba_conv_bias": False},
                    gguf=False, why="no biases around Mamba-2, and the gate is first"),
        ),
    ),
    "nemotron_h": Family(
        "NemotronHConfig",
        _NEMOTRON,
        (
            Variant("plain"),
            Variant("experts", _NEMOTRON_EXPERTS),
            Variant("experts on a projection", {**_NEMOTRON_EXPERTS, "moe_latent_size": 24}),
            Variant("odd biased", {**ODD, "head_dim": 24, "mlp_bias": True,
                    "use_bias": True, "ssm_state_size": 12, "mamba_num_heads": 4, "mamba_head_dim": 20, "n_groups": 1,
                    "conv_kernel": 3}, gguf=False, why="no biases"),
        ),
    ),
    "lfm2": Family(
        "Lfm2Config",
        _SHORT,
        (
            Variant("plain", {"block_multiple_of": 32}),
            Variant("odd tied biased", {**ODD, **_TIED, "block_auto_adjust_ff_dim": False, "conv_bias": True,
                    "conv_L_cache": 4, "layer_types": [FULL, "conv", "conv"]}, gguf=False, why="no bias"),
            Variant("odd", {**ODD, "block_auto_adjust_ff_dim": False}),
        ),
    ),
    "lfm2_moe": Family(
        "Lfm2MoeConfig",
        {**_SHORT, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_dense_layers": 1},
        (
            Variant("plain"),
            Variant("odd tied, no bias, not normalised", {**ODD, **_TIED, "use_expert_bias": False, "num_experts": 5,
                    "norm_topk_prob": False, "routed_scaling_factor": 1.7, "moe_intermediate_size": 40},
                    gguf=False, why="it always normalises"),
            Variant("odd", {**ODD, "num_dense_layers": 2, "layer_types": ["conv", "conv", FULL]}),
        ),
    ),
    "qwen3_5_text": Family(
        "Qwen3_5TextConfig",
        _DELTA,
        (
            Variant("plain"),
            Variant("odd tied", _DELTA_ODD),
            Variant("three to one, biased", {"linear_num_value_heads": 6, "linear_value_head_dim": 20,
                    "attention_bias": True, "num_hidden_layers": 2, "layer_types": [LINEAR_ATTENTION, FULL]},
                    gguf=False, why="no bias, and one size of heads"),
        ),
    ),
    "qwen3_5_moe_text": Family(
        "Qwen3_5MoeTextConfig",
        {**_DELTA, **_DELTA_EXPERTS},
        (
            Variant("plain"),
            Variant("odd tied", {**_DELTA_ODD, "num_experts": 4, "moe_intermediate_size": 40}),
            Variant("more heads", {"linear_num_value_heads": 8, "linear_value_head_dim": 16, "num_hidden_layers": 2,
                    "layer_types": [LINEAR_ATTENTION, FULL]}),
        ),
    ),
    "qwen3_next": Family(
        "Qwen3NextConfig",
        {**_NEXT, **_DELTA_EXPERTS},
        (
            Variant("plain"),
            Variant("odd tied", {**_NEXT_ODD, "num_experts": 4, "moe_intermediate_size": 40}),
            Variant("three to one, dense layers, not normalised, biased", {"linear_num_value_heads": 6,
                    "norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [3], "attention_bias": True},
                    gguf=False, why="it always normalises; no dense layers, no bias"),
        ),
    ),
    "qwen3_5": _seeing("Qwen3_5Config", "qwen3_5_text", _DELTA_EYES, gguf=True, **_INSIDE),
    "qwen3_5_moe": _seeing(
        "Qwen3_5MoeConfig", "qwen3_5_moe_text", _DELTA_EYES, gguf=True, **_INSIDE, **_DELTA_EXPERTS
    ),
    "phi3": Family(
        "Phi3Config",
        {**SIZES, "original_max_position_embeddings": CONTEXT},
        (
            Variant("plain"),
            Variant("long", _longrope(24)),
            Variant("window odd", {**ODD, "sliding_window": 9}, llama_cpp=False, why="it reads the window, drops it"),
            Variant("partial tied", {**_TIED, "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5}}),
            Variant("short", _longrope(CONTEXT)),
            Variant("long factor", _longrope(24, attention_factor=1.3), gguf=False,
                    why="the converter writes what the contexts' ratio gives"),
        ),
    ),
    "gemma2": Family(
        "Gemma2Config",
        {**_GEMMA, "num_hidden_layers": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        (
            Variant("plain"),
            Variant("no caps untied biased", {"attn_logit_softcapping": None, "final_logit_softcapping": None,
                    "attention_bias": True, "tie_word_embeddings": False}, gguf=False, why="always capped and tied"),
            Variant("odd", {**ODD, "head_dim": 32, "query_pre_attn_scalar": 32}),
            Variant("pattern scalar", {"layer_types": [FULL, FULL, SLIDING], "query_pre_attn_scalar": 9,
                    "rope_parameters": LINEAR}, gguf=False, why="the scalar is the head size; rope has no keys"),
        ),
    ),
    "gemma3_text": Family(
        "Gemma3TextConfig",
        {**_GEMMA, "num_hidden_layers": 3, "sliding_window_pattern": 3,
         **_layered({"rope_type": "default", "rope_theta": 1e6}, 10000.0)},
        (
            Variant("plain"),
            Variant("six to one, scaled", {"num_hidden_layers": 7, "sliding_window_pattern": 6,
                    "final_logit_softcapping": 3.0,
                    **_layered({"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}, 10000.0)}),
            Variant("pattern scalar biased untied", {"layer_types": [FULL, SLIDING, FULL], "query_pre_attn_scalar": 9,
                    "attention_bias": True, "tie_word_embeddings": False}, gguf=False,
                    why="the scalar is the head size; no bias"),
            Variant("odd", {**ODD, "head_dim": 32, "query_pre_attn_scalar": 32,
                            **_layered({"rope_type": "default", "rope_theta": 1e5}, 500.0)}),
        ),
    ),
    "gemma3": Family(
        "Gemma3Config",
        {"vision_config": _VISION, "mm_tokens_per_image": 4, "text_config": {
            **_GEMMA, "num_hidden_layers": 3, "sliding_window_pattern": 3,
            **_layered({"rope_type": "default", "rope_theta": 1e6}, 10000.0)}},
        (Variant("text part", gguf=False, why="its GGUF file is gemma3_text's"),),
    ),
    "gemma4_text": Family(
        "Gemma4TextConfig",
        _GEMMA4,
        (
            Variant("e2b", _PER_LAYER),
            Variant("31b"),
            Variant("31b odd biased untied", {**ODD, "num_hidden_layers": 7, "layer_types": None, "head_dim": 24,
                    "global_head_dim": 40, "num_global_key_value_heads": 3, "attention_bias": True,
                    "tie_word_embeddings": False, "final_logit_softcapping": None,
                    **_layered({"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                                "factor": 4.0}, 500.0)}, gguf=False, why="no bias; the rope has no factor"),
            Variant("31b keys and values apart", {"attention_k_eq_v": False, "head_dim": 32, "global_head_dim": 32,
                    "layer_types": [FULL, SLIDING, SLIDING, FULL],
                    **_layered({"rope_type": "default", "rope_theta": 1e5}, 500.0)}, gguf=False, why="its rope is not"),
            Variant("e4b odd", {**_PER_LAYER, **ODD, "head_dim": 24, "global_head_dim": 40,
                    "use_double_wide_mlp": False,
                    "hidden_size_per_layer_input": 11, "num_hidden_layers": 6,
                    "layer_types": [SLIDING, FULL, SLIDING, SLIDING, SLIDING, FULL], "num_kv_shared_layers": 4}),
            Variant("26b", _GEMMA4_EXPERTS),
            Variant("26b odd, with embeddings by layer", {**_PER_LAYER, **ODD, **_GEMMA4_EXPERTS, "head_dim": 24,
                    "global_head_dim": 40, "num_experts": 5, "top_k_experts": 3, "moe_intermediate_size": 40}),
            Variant("e2b one key for both", {**_PER_LAYER, "attention_k_eq_v": True, "attention_bias": True,
                    "hidden_size_per_layer_input": 40, "vocab_size_per_layer_input": VOCAB + 6,
                    "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL]}, gguf=False, why="no bias"),
        ),
    ),
    "gemma4": Family(
        "Gemma4Config",
        {"vision_config": {**_VISION, "head_dim": 16, "num_key_value_heads": 2},
         "text_config": {**_GEMMA4, **_PER_LAYER}},
        (Variant("text part", gguf=False, why="its GGUF file is gemma4_text's"),),
    ),
    "gemma4_unified_text": Family(
        "Gemma4UnifiedTextConfig",
        _UNIFIED,
        (
            Variant("plain"),
            Variant("odd biased untied, no pattern", {**ODD, "num_hidden_layers": 7, "layer_types": None,
                    "head_dim": 24, "global_head_dim": 40, "num_global_key_value_heads": 3, "attention_bias": True,
                    "tie_word_embeddings": False, "final_logit_softcapping": None}, gguf=False, why="no bias"),
            Variant("shared keys", {"num_hidden_layers": 5, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
                    "num_kv_shared_layers": 2, "attention_k_eq_v": False, "use_double_wide_mlp": True}),
        ),
    ),
    "gemma4_unified": Family(
        "Gemma4UnifiedConfig",
        {"vision_config": {"patch_size": 4, "mm_embed_dim": 64, "mm_posemb_size": 8, "output_proj_dims": 64},
         "audio_config": {"audio_embed_dim": 16},
         "text_config": _UNIFIED},
        (Variant("text part", gguf=False, why="its GGUF file is gemma4_text's"),),
    ),
    "muse_glimmer_text": Family(
        "MuseGlimmerTextConfig",
        _MUSE,
        (
            Variant("plain"),
            Variant("odd biased tied, other layers", {**ODD, **_TIED, "head_dim": 32, "num_hidden_layers": 3,
                    "attention_bias": True, "layer_types": [FULL, SLIDING, SLIDING],
                    "layer_rope_theta": [500.0, 0, 500.0], "post_norm_eps": 1e-1}, gguf=False,
                    why="rope is in the layers with a window; no bias, no second epsilon"),
            Variant("odd yarn, other factors", {**ODD, "head_dim": 24, "num_hidden_layers": 6,
                    "qk_scale_factor": 2.0, "final_logit_softcapping": 5.0, "output_multiplier": 0.7,
                    "rope_parameters": YARN}, llama_cpp=False, why="its rope near by is never scaled"),
        ),
    ),
    "muse_glimmer": Family(
        "MuseGlimmerConfig",
        {"vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                           "patch_size": 4, "pos_emb_height": 2, "pos_emb_width": 2},
         "out_hidden_size": 64, "projector_hidden_size": 16, "text_config": _MUSE},
        (Variant("text part", gguf=False, why="its GGUF file is muse_glimmer_text's"),),
    ),
    "mistral3": Family(
        "Mistral3Config",
        {"vision_config": {**_VISION, "model_type": "pixtral", "head_dim": 8}, "tie_word_embeddings": False,
         "text_config": {**SIZES, **_APART, "model_type": "ministral3", "rope_parameters": MINISTRAL}},
        (
            Variant("ministral 3", gguf=False, why="its GGUF file is ministral3's"),
            Variant("mistral tied", {"tie_word_embeddings": True, "text_config": {**SIZES, **_APART, **ODD,
                    "head_dim": 32, "model_type": "mistral", "sliding_window": 9}}, gguf=False,
                    why="its GGUF file is mistral's"),
        ),
    ),
    "llava": _seeing("LlavaConfig", "llama", {**_VISION, "model_type": "clip_vision_model"}),
    "llava_next": _seeing("LlavaNextConfig", "mistral", {**_VISION, "model_type": "clip_vision_model"}, _GRID),
    "llava_onevision": _seeing(
        "LlavaOnevisionConfig", "qwen2", {**_VISION, "model_type": "siglip_vision_model"}, _GRID
    ),
    "vipllava": _seeing("VipLlavaConfig", "llama", {**_VISION, "num_hidden_layers": 12,
                                                   "model_type": "clip_vision_model"}),
    "internvl": _seeing("InternVLConfig", "qwen3", {**_VISION, "image_size": [28, 28], "patch_size": [14, 14]}),
    # Some transformers write a pad_token_id of 128,002 where none is given, which is beyond a small vocabulary.
    "idefics3": _seeing("Idefics3Config", "llama", _VISION, {"pad_token_id": 0}),
    "smolvlm": _seeing("SmolVLMConfig", "llama", _VISION, {"pad_token_id": 0}),
    "lfm2_vl": _seeing(
        "Lfm2VlConfig", "lfm2", {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_patches": 16, "patch_size": 4, "model_type": "siglip2_vision_model"},
        {"projector_hidden_size": 16, "image_token_id": 7},
        **_SHORT, block_multiple_of=32,
    ),
    "qwen2_vl": _seeing(
        "Qwen2VLConfig", "qwen2_vl_text", {"depth": 1, "embed_dim": 16, "hidden_size": 64, "num_heads": 2,
        "mlp_ratio": 2, "patch_size": 4}, gguf=True, rope_parameters={**_PLAIN, "mrope_section": [2, 3, 3]},
    ),
    "qwen2_5_vl": _seeing(
        "Qwen2_5_VLConfig", "qwen2_5_vl_text", {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
        "out_hidden_size": 64, "patch_size": 4, "fullatt_block_indexes": [0]}, use_sliding_window=True,
        sliding_window=9, max_window_layers=1, rope_parameters={**YARN, "mrope_section": [2, 3, 3]},
    ),
    "qwen3_vl": _seeing(
        "Qwen3VLConfig", "qwen3_vl_text", {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
        "out_hidden_size": 64, "patch_size": 4, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        gguf=True, head_dim=16, rope_parameters={**_PLAIN, "mrope_section": [2, 3, 3], "mrope_interleaved": True},
    ),
    "qwen3_vl_moe": _seeing(
        "Qwen3VLMoeConfig", "qwen3_vl_moe_text", {"depth": 1, "hidden_size": 16, "intermediate_size": 16,
        "num_heads": 2, "out_hidden_size": 64, "patch_size": 4, "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16}, gguf=True, head_dim=24, num_hidden_layers=3, num_experts=5,
        num_experts_per_tok=2, moe_intermediate_size=48, mlp_only_layers=[],
        rope_parameters={**_PLAIN, "mrope_section": [4, 4, 4], "mrope_interleaved": True},
    ),
    "olmo2": Family(
        "Olmo2Config",
        SIZES,
        (
            Variant("plain", {"rope_parameters": {**_PLAIN, "rope_theta": 5e5}}),
            Variant("biased odd tied", {**ODD, **_TIED, "attention_bias": True}, gguf=False,
                    why="no output bias; untied"),
            Variant("linear odd", {**ODD, "rope_parameters": LINEAR}),
        ),
    ),
    "olmo3": Family(
        "Olmo3Config",
        {**SIZES, "num_hidden_layers": 4, "sliding_window": 9, **_layered({**YARN, "rope_theta": 5e5}, 5e5)},
        (
            Variant("plain"),
            Variant("pattern biased tied", {**_TIED, "num_hidden_layers": 3, "layer_types": [FULL, SLIDING, FULL],
                    "attention_bias": True}, gguf=False, why="no output bias; untied"),
            Variant("odd", {**ODD, "num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING],
                            **_layered({**_PLAIN, "rope_theta": 5e5}, 5e5)}),
        ),
    ),
    "gpt_oss": Family(
        "GptOssConfig",
        {**SIZES, "head_dim": 16, "num_hidden_layers": 3, "sliding_window": 8, "num_local_experts": 4,
         "num_experts_per_tok": 2,
         "rope_parameters": {**YARN, "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                             "original_max_position_embeddings": 4096, "truncate": False}},
        (
            Variant("plain", llama_cpp=False, why="it rounds the ends of yarn's ramp, the model does not"),
            Variant("default rope odd", {**ODD, "num_local_experts": 5, "num_experts_per_tok": 3,
                                         "rope_parameters": {**_PLAIN, "rope_theta": 150000.0}}),
            Variant("limits, no bias, tied", {**_TIED, "attention_bias": False, "swiglu_alpha": 1.2,
                    "swiglu_limit": 1.5, "layer_types": [FULL, SLIDING, SLIDING]}, gguf=False,
                    why="alpha, limit, pattern and biases are the architecture's"),
            Variant("yarn rounded", {"rope_parameters": {**YARN, "rope_theta": 150000.0}}, gguf=False,
                    why="a GGUF file does not say whether the ramp's ends are rounded; the models' are not"),
        ),
    ),
    "mixtral": Family(
        "MixtralConfig",
        {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
        (
            Variant("plain"),
            Variant("window apart one expert", {**_APART, "sliding_window": 9, "num_local_experts": 3,
                    "num_experts_per_tok": 1}, gguf=False, why="its files say llama: no window"),
            Variant("odd tied eight", {**ODD, **_TIED, "num_local_experts": 8, "num_experts_per_tok": 3}),
        ),
    ),
    "qwen3_moe": Family(
        "Qwen3MoeConfig",
        {**SIZES, **_APART, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
         "norm_topk_prob": True},
        (
            Variant("plain"),
            Variant("not normalised, dense layers, biased", {"num_hidden_layers": 3, "norm_topk_prob": False,
                    "mlp_only_layers": [1], "attention_bias": True}, gguf=False,
                    why="it always normalises; no dense layers, no output bias"),
            Variant("odd tied eight", {**ODD, **_TIED, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
                                       "moe_intermediate_size": 52, "rope_parameters": YARN}),
            Variant("window, every 2nd", {"num_hidden_layers": 4, "decoder_sparse_step": 2, "use_sliding_window": True,
                    "sliding_window": 9}, gguf=False, why="no window, no dense layers"),
        ),
    ),
    "mellum": Family(
        "MellumConfig",
        {**SIZES, **_APART, "num_hidden_layers": 4, "num_experts": 5, "num_experts_per_tok": 3, "sliding_window": 7,
         "moe_intermediate_size": 64, "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
         **_layered({**_PLAIN, "rope_theta": 5e5}, 300.0)},
        (
            Variant("plain", llama_cpp=False, why="it has the base of full layers in those with a window too"),
            Variant("yarn, odd eight, one base", {**ODD, "head_dim": 32, "num_experts": 8,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 52, "num_hidden_layers": 3,
                    "layer_types": [FULL, SLIDING, FULL],
                    **_layered({**YARN, "rope_theta": 5e5}, 5e5)}),
            Variant("not normalised, a dense layer, biased, tied", {**_TIED, "norm_topk_prob": False,
                    "attention_bias": True, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]}, gguf=False,
                    why="it always normalises; no dense layers, no bias"),
        ),
    ),
    "afmoe": Family(
        "AfmoeConfig",
        {**SIZES, **_APART, "num_hidden_layers": 4, "num_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7,
         "moe_intermediate_size": 40, "num_dense_layers": 2, "num_shared_experts": 1, "route_scale": 1.8,
         "mup_enabled": True, "rope_parameters": {**_PLAIN, "rope_theta": 300.0}},
        (
            Variant("plain"),
            Variant("no multiplier, biased, another pattern", {"mup_enabled": False, "attention_bias": True,
                    "global_attn_every_n_layers": 2, "num_hidden_layers": 2, "num_dense_layers": 0,
                    "num_shared_experts": 2}, gguf=False, why="its files imply both, and no bias"),
            Variant("odd tied eight", {**ODD, **_TIED, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3,
                    "num_dense_layers": 3, "num_shared_experts": 2, "moe_intermediate_size": 36, "route_scale": 0.7}),
        ),
    ),
    "gemma": Family(
        "GemmaConfig",
        {**SIZES, **_APART, "rms_norm_eps": 1e-6},
        (
            Variant("plain"),
            Variant("odd linear", {**ODD, "head_dim": 32, "rope_parameters": LINEAR}, gguf=False, why="no rope keys"),
            Variant("biased untied", {"attention_bias": True, "tie_word_embeddings": False}, gguf=False,
                    why="always tied, no bias"),
            Variant("odd", {**ODD, "head_dim": 32}),
        ),
    ),
    "olmoe": Family(
        "OlmoeConfig",
        {**SIZES, "num_key_value_heads": 4, "num_experts": 5, "num_experts_per_tok": 3, "rms_norm_eps": 1e-5},
        (
            Variant("plain"),
            Variant("normalised biased tied", {**_TIED, "norm_topk_prob": True, "attention_bias": True,
                    "num_key_value_heads": 2}, gguf=False, why="it never normalises; untied, no bias"),
            Variant("odd eight", {**ODD, "num_key_value_heads": 3, "num_experts": 8, "num_experts_per_tok": 2,
                                  "rope_parameters": YARN}),
        ),
    ),
    "qwen2_moe": Family(
        "Qwen2MoeConfig",
        {**SIZES, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
         "shared_expert_intermediate_size": 80},
        (
            Variant("plain"),
            Variant("normalised, dense layers, windows, no bias", {**_TIED, "num_hidden_layers": 4,
                    "norm_topk_prob": True, "mlp_only_layers": [1], "qkv_bias": False, "use_sliding_window": True,
                    "sliding_window": 9, "layer_types": [SLIDING, FULL, FULL, SLIDING]}, gguf=False,
                    why="it never normalises; no dense layers, no window"),
            Variant("odd eight", {**ODD, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 52,
                                  "shared_expert_intermediate_size": 37, "rope_parameters": YARN}),
        ),
    ),
    "seed_oss": Family(
        "SeedOssConfig",
        {**SIZES, **_APART},
        (
            Variant("plain"),
            Variant("all biased odd tied", {**ODD, **_TIED, "attention_out_bias": True, "mlp_bias": True}, gguf=False,
                    why="no bias of the output or the MLP"),
            Variant("no bias yarn odd", {**ODD, "head_dim": 32, "attention_bias": False, "rope_parameters": YARN}),
        ),
    ),
    "exaone4": Family(
        "Exaone4Config",
        {**SIZES, "num_hidden_layers": 4, "sliding_window": 9},
        (
            Variant("plain", llama_cpp=False, why="it has windows where there are 64 layers"),
            Variant("pattern tied", {**_TIED, "num_hidden_layers": 3, "layer_types": [FULL, SLIDING, SLIDING]},
                    llama_cpp=False, why="as above"),
            Variant("no windows, llama3 odd", {**ODD, "num_hidden_layers": 2, "sliding_window": None,
                    "layer_types": [FULL, FULL], "rope_parameters": LLAMA3}),
        ),
    ),
    "ernie4_5": Family(
        "Ernie4_5Config",
        {**SIZES, **_APART},
        (
            Variant("plain", {"rope_parameters": {**_PLAIN, "rope_theta": 5e5}}),
            Variant("biased untied odd", {**ODD, "head_dim": 32, "use_bias": True, "tie_word_embeddings": False},
                    gguf=False, why="no bias"),
            Variant("linear odd", {**ODD, "head_dim": 32, "rope_parameters": LINEAR}),
        ),
    ),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeConfig",
        {**SIZES, "num_hidden_layers": 3, "moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 24},
        (
            Variant("plain"),
            Variant("every second, to a layer, odd untied", {**ODD, "tie_word_embeddings": False,
                    "num_hidden_layers": 6, "moe_layer_interval": 2, "moe_layer_end_index": 4, "moe_num_experts": 5,
                    "moe_k": 2, "moe_intermediate_size": 52, "moe_num_shared_experts": 3},
                    llama_cpp=False, why="it knows no last mixture, and takes the size of shared experts from a key"),
            Variant("from the first, none shared, linear", {"moe_layer_start_index": 0, "moe_num_shared_experts": 0,
                    "rope_parameters": LINEAR}),
        ),
    ),
    "glm4": Family(
        "Glm4Config",
        {**SIZES, "head_dim": 16},
        (
            Variant("plain"),
            Variant("odd tied, no bias, a quarter", {**ODD, **_TIED, "head_dim": 32, "attention_bias": False,
                    "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.25}}),
            Variant("whole heads", {"head_dim": 24, "rope_parameters": {**LINEAR, "partial_rotary_factor": 1.0}}),
        ),
    ),
    "arcee": Family(
        "ArceeConfig",
        SIZES,
        (
            Variant("plain"),
            Variant("biased odd tied", {**ODD, **_TIED, "attention_bias": True, "mlp_bias": True}, gguf=False,
                    why="no bias of the MLP"),
            Variant("llama3 odd", {**ODD, "rope_parameters": LLAMA3}),
            Variant("yarn apart", {**_APART, "rope_parameters": YARN}),
        ),
    ),
    "hunyuan_v1_dense": Family(
        "HunYuanDenseV1Config",
        {**SIZES, **_APART},
        (
            Variant("plain"),
            Variant("stretched odd tied", {**ODD, **_TIED, "rope_parameters": {"rope_type": "dynamic",
                    "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}}),
            Variant("biased yarn", {"attention_bias": True, "rope_parameters": YARN}, gguf=False, why="no bias"),
        ),
    ),
    "starcoder2": Family(
        "Starcoder2Config",
        {**{key: value for key, value in SIZES.items() if key != "rms_norm_eps"}, "norm_epsilon": 1e-5},
        (
            Variant("plain"),
            Variant("window untied no bias", {"tie_word_embeddings": False, "use_bias": False, "sliding_window": 9},
                    gguf=False, why="always biased, no window"),
            Variant("odd untied", {**ODD, "tie_word_embeddings": False, "rope_parameters": LINEAR}),
        ),
    ),
    "cohere2": Family(
        "Cohere2Config",
        {**{key: value for key, value in SIZES.items() if key != "rms_norm_eps"}, "layer_norm_eps": 1e-5,
         "num_hidden_layers": 4, "sliding_window": 9, "logit_scale": 0.25},
        (
            Variant("plain"),
            Variant("pattern biased untied", {"num_hidden_layers": 3, "layer_types": [FULL, SLIDING, FULL],
                    "attention_bias": True, "tie_word_embeddings": False}, gguf=False,
                    why="every fourth layer sees all; tied, no bias"),
            Variant("odd", {**ODD, "rope_parameters": {**_PLAIN, "rope_theta": 5e4}}),
        ),
    ),
    "apertus": Family(
        "ApertusConfig",
        {**SIZES, "rope_parameters": LLAMA3},
        (
            Variant("plain"),
            Variant("biased odd tied", {**ODD, **_TIED, "attention_bias": True, "rope_parameters": _PLAIN}, gguf=False,
                    why="untied"),
            Variant("odd biased", {**ODD, "attention_bias": True}),
        ),
    ),
    "glm4_moe": Family(
        "Glm4MoeConfig",
        {**SIZES, **_ROUTED, **_APART, "num_key_value_heads": 2, "use_qk_norm": True,
         "first_k_dense_replace": 1},
        (
            Variant("plain"),
            Variant("odd tied biased, groups", {**ODD, **_TIED, "head_dim": 32, "attention_bias": True,
                    "use_qk_norm": False, "n_routed_experts": 6, "n_group": 3, "topk_group": 2, "n_shared_experts": 2,
                    "routed_scaling_factor": 1.5, "first_k_dense_replace": 2, "num_hidden_layers": 3,
                    "rope_parameters": {**LINEAR, "partial_rotary_factor": 0.5}}),
            Variant("whole heads rotated, not normalised", {"norm_topk_prob": False, "first_k_dense_replace": 0,
                    "rope_parameters": {**_PLAIN, "partial_rotary_factor": 1.0}}),
        ),
    ),
    "bailing_moe_v2": Family(
        "BailingMoeV2Config",
        {**SIZES, "head_dim": 16, "num_hidden_layers": 3, "num_experts": 8, "num_experts_per_tok": 2, "n_group": 4,
         "topk_group": 2, "moe_intermediate_size": 40, "rope_parameters": {**_PLAIN, "rope_theta": 6e5}},
        (
            Variant("plain"),
            Variant("odd, tied, a quarter, two shared, scaled", {**ODD, **_TIED, "head_dim": 32, "num_experts": 6,
                    "n_group": 2, "topk_group": 1, "num_shared_experts": 2, "partial_rotary_factor": 0.25,
                    "first_k_dense_replace": 0, "routed_scaling_factor": 1.5},
                    llama_cpp=False, why="it is untied, and multiplies the size of shared experts by their number"),
            Variant("one expert, no norms, no group, none shared", {"num_experts_per_tok": 1, "use_qk_norm": False,
                    "n_group": 1, "topk_group": 1, "num_shared_experts": 0, "partial_rotary_factor": 1.0},
                    gguf=False, why="it has norms, and normalises one weight to 1"),
        ),
    ),
    "minicpm": Family(
        "MiniCPMConfig",
        {**SIZES, "scale_emb": 3.0, "scale_depth": 0.8, "dim_model_base": 16.0, "num_hidden_layers": 3},
        (
            Variant("plain"),
            Variant("odd, untied, biased", {**ODD, "tie_word_embeddings": False, "attention_bias": True},
                    gguf=False, why="no bias of q, k and v"),
            Variant("long", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0,
                    "original_max_position_embeddings": CONTEXT,
                    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0], "long_factor": [1.0] * 8}}),
            Variant("odd, untied", {**ODD, "tie_word_embeddings": False, "scale_emb": 1.0}),
        ),
    ),
    "laguna": Family(
        "LagunaConfig",
        {**SIZES, "head_dim": 16, "num_hidden_layers": 5, "layer_types": [FULL, SLIDING, SLIDING, SLIDING, FULL],
         "sliding_window": 9, "num_attention_heads_per_layer": [4, 6, 6, 6, 4], "num_experts": 6,
         "num_experts_per_tok": 2, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56,
         "moe_routed_scaling_factor": 2.5,
         "rope_parameters": {FULL: {**YARN, "rope_theta": 5e5, "partial_rotary_factor": 0.5},
                             SLIDING: {**_PLAIN, "partial_rotary_factor": 1.0}}},
        (
            Variant("plain"),
            Variant("per element, odd, tied, two dense", {**ODD, **_TIED, "head_dim": 24, "gating": "per-element",
                    "sliding_window": 512,
                    "num_hidden_layers": 4, "layer_types": [FULL] * 4, "num_attention_heads_per_layer": [3, 2, 1, 3],
                    "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
                    "rope_parameters": {FULL: {**_PLAIN, "rope_theta": 5e5, "partial_rotary_factor": 1.0},
                                        SLIDING: _PLAIN}}),
            Variant("biased, a part in windows, an MLP between", {"attention_bias": True, "num_hidden_layers": 3,
                    "layer_types": [SLIDING, FULL, SLIDING], "num_attention_heads_per_layer": None,
                    "mlp_layer_types": ["sparse", "dense", "sparse"],
                    "rope_parameters": {FULL: {**LINEAR, "partial_rotary_factor": 0.75},
                                        SLIDING: {**_PLAIN, "partial_rotary_factor": 0.5}}},
                    gguf=False, why="no bias, and MLPs come first"),
        ),
    ),
    "deepseek_v2": Family(
        "DeepseekV2Config",
        {**SIZES, **_ROUTED, **_LATENT, "n_shared_experts": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1},
        (
            Variant("plain"),
            Variant("lite odd tied yarn", {**ODD, **_TIED, "num_key_value_heads": 3, "q_lora_rank": None,
                    "kv_lora_rank": 44, "qk_nope_head_dim": 20, "qk_rope_head_dim": 12, "v_head_dim": 28,
                    "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
                    llama_cpp=False, why="it knows Lite by its 26 or 27 layers"),
            Variant("groups biased", {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
                    "num_experts_per_tok": 3, "routed_scaling_factor": 3.0, "attention_bias": True,
                    "first_k_dense_replace": 0}, llama_cpp=False, why="its groups are worth their two best experts"),
        ),
    ),
    "deepseek_v3": Family(
        "DeepseekV3Config",
        {**SIZES, **_ROUTED, **_LATENT, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
        (
            Variant("plain", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
            Variant("odd tied biased", {**ODD, **_TIED, "num_key_value_heads": 3, "kv_lora_rank": 44, "q_lora_rank": 28,
                    "qk_nope_head_dim": 20, "qk_rope_head_dim": 12, "v_head_dim": 28, "attention_bias": True,
                    "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5},
                    llama_cpp=False, why="it has no biases there"),
            Variant("halves, no low rank, not normalised", {"rope_interleave": False, "q_lora_rank": None,
                    "norm_topk_prob": False, "n_shared_experts": 2}, gguf=False, why="its pairs are neighbours"),
        ),
    ),
    "kimi_linear": Family(
        "KimiLinearConfig",
        {**SIZES, **_KDA, "linear_num_heads": 4, "linear_head_dim": 16,
         "mlp_layer_types": ["dense", "sparse", "sparse"]},
        (
            Variant("plain"),
            Variant("odd, low rank, grouped", {**ODD, "num_attention_heads": 3, "num_key_value_heads": 3,
                    "linear_num_heads": 3, "linear_head_dim": 24, "linear_conv_kernel_dim": 3, "q_lora_rank": 28,
                    "kv_lora_rank": 44, "qk_rope_head_dim": 12, "n_group": 2, "topk_group": 1, "n_shared_experts": 2,
                    "mlp_layer_types": ["sparse", "sparse", "dense"]},
                    gguf=False, why="dense layers are the first ones"),
            Variant("not normalised, other heads", {"norm_topk_prob": False, "linear_num_heads": 5,
                    "linear_head_dim": 8}, gguf=False, why="as many heads of both kinds"),
        ),
    ),
    "bailing_hybrid": Family(
        "BailingHybridConfig",
        {**SIZES, **_KDA, "head_dim": 16, "kda_lower_bound": -3.0, "first_k_dense_replace": 1, "n_group": 4,
         "topk_group": 2},
        (
            Variant("plain"),
            Variant("odd, low rank", {**ODD, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 24,
                    "short_conv_kernel_size": 3, "q_lora_rank": 28, "kv_lora_rank": 44, "qk_rope_head_dim": 12,
                    "n_group": 1, "topk_group": 1, "n_shared_experts": 2, "layer_types": [FULL, LINEAR_ATTENTION, FULL],
                    "rope_parameters": {**LINEAR, "rope_theta": 6000000.0}}),
            Variant("not bounded, not normalised", {"kda_safe_gate": False, "norm_topk_prob": False},
                    gguf=False, why="it has bounded decays only"),
        ),
    ),
    "glm4_moe_lite": Family(
        "Glm4MoeLiteConfig",
        {**SIZES, **_ROUTED, **_LATENT},
        tuple(Variant(name, values, gguf=False, why="its GGUF file is deepseek_v3's") for name, values in (
            ("plain", {"mlp_layer_types": ["dense", "sparse"]}),
            ("sparse first, odd tied", {**ODD, **_TIED, "num_key_value_heads": 3, "kv_lora_rank": 42,
             "qk_rope_head_dim": 14, "mlp_layer_types": ["sparse", "dense"], "routed_scaling_factor": 1.8}),
            ("groups yarn biased", {"n_group": 2, "topk_group": 1, "attention_bias": True,
             "mlp_layer_types": ["sparse", "sparse"], "rope_parameters": {**YARN, "mscale": 1.0,
                                                                          "mscale_all_dim": 0.5}}),
        )),
    ),
}  # fmt: skip
"""``model_type`` to family."""


def variants(model_type: str) -> list[Variant]:
    """Every variant of a family."""
    return list(FAMILIES[model_type].variants)
