"""Every family here with its tiny random models: a base of sizes, and variants with every switch on and off.

A family is a row of ``FAMILIES``; ``tiny_families.py`` builds and saves them.
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
SLIDING, FULL = "sliding_attention", "full_attention"


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
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_GEMMA = {
    **SIZES, "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 7, "rms_norm_eps": 1e-6,
}  # fmt: skip
_VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
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
                    "shared_intermediate_size": 160}, gguf=False, why="its files have rope, and one size"),
        ),
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
    "idefics3": _seeing("Idefics3Config", "llama", _VISION),
    "smolvlm": _seeing("SmolVLMConfig", "llama", _VISION),
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
}  # fmt: skip
"""``model_type`` to family."""


def variants(model_type: str) -> list[Variant]:
    """Every variant of a family."""
    return list(FAMILIES[model_type].variants)
