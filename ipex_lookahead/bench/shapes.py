"""Shapes of popular models: the published configs, without weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_json import JsonObject

if TYPE_CHECKING:
    from ipex_lookahead.architectures import ModelSpec

_WORDS = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip


def _gemma4(every: int, window: int, key_heads: int | None = None) -> dict[str, Any]:
    """Return the further keys of a Gemma 4 config: full attention in every ``every``-th layer, with its key heads."""
    return {
        "layer_types": ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(60)],
        "sliding_window": window,
        "global_head_dim": 512,
        "num_global_key_value_heads": key_heads,
        "attention_k_eq_v": key_heads is not None,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0,
    }


# Name -> (family, values of _WORDS with 0 for none, further keys)
_SHAPES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "smollm2-135m": ("llama", (30, 576, 1536, 9, 3, 64, 49152, 8192), {"tie_word_embeddings": True}),
    "tinyllama-1.1b": ("llama", (22, 2048, 5632, 32, 4, 64, 32000, 4096), {"tie_word_embeddings": True}),
    "llama2-7b": ("llama", (32, 4096, 11008, 32, 32, 128, 32000, 8192), {"tie_word_embeddings": True}),
    "llama2-13b": ("llama", (40, 5120, 13824, 40, 40, 128, 32000, 8192), {"tie_word_embeddings": True}),
    "llama-3.1-8b": ("llama", (32, 4096, 14336, 32, 8, 128, 128256, 131072), {"rope_theta": 500000.0}),
    "qwen3-0.6b": ("qwen3", (28, 1024, 3072, 16, 8, 128, 151936, 40960), {"tie_word_embeddings": True}),
    "qwen3-8b": ("qwen3", (36, 4096, 12288, 32, 8, 128, 151936, 40960), {}),
    "gemma3-1b": ("gemma3_text", (26, 1152, 6912, 4, 1, 256, 262144, 32768), {"sliding_window": 512}),
    "phi4-mini": (
        "phi3",
        (32, 3072, 8192, 24, 8, 128, 200064, 131072),
        {
            "tie_word_embeddings": True,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48},
        },
    ),
    "mistral-7b": ("mistral", (32, 4096, 14336, 32, 8, 128, 32768, 32768), {"sliding_window": None}),
    "qwen3-30b-a3b": (
        "qwen3_moe",
        (48, 2048, 6144, 32, 4, 128, 151936, 40960),
        {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True},
    ),
    "gpt-oss-20b": (
        "gpt_oss",
        (24, 2880, 2880, 64, 8, 64, 201088, 131072),
        {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128},
    ),
    "qwen3.5-0.8b": (
        "qwen3_5_text",
        (24, 1024, 3584, 8, 2, 256, 248320, 262144),
        {"tie_word_embeddings": True, "linear_num_value_heads": 16},
    ),
    "qwen3.5-4b": ("qwen3_5_text", (32, 2560, 9216, 16, 4, 256, 248320, 262144), {"tie_word_embeddings": True}),
    "qwen3.5-9b": ("qwen3_5_text", (32, 4096, 12288, 16, 4, 256, 248320, 262144), {}),
    "qwen3.5-35b-a3b": (
        "qwen3_5_moe_text",
        (40, 2048, 0, 16, 2, 256, 248320, 262144),
        {
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
    ),
    "gemma4-e2b": (
        "gemma4_text",
        (35, 1536, 6144, 8, 1, 256, 262144, 131072),
        {
            **_gemma4(5, 512),
            "num_kv_shared_layers": 20,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 256,
        },
    ),
    "gemma4-e4b": (
        "gemma4_text",
        (42, 2560, 10240, 8, 2, 256, 262144, 131072),
        {**_gemma4(6, 512), "num_kv_shared_layers": 18, "hidden_size_per_layer_input": 256},
    ),
    "gemma4-26b-a4b": (
        "gemma4_text",
        (30, 2816, 2112, 16, 8, 256, 262144, 262144),
        {
            **_gemma4(6, 1024, key_heads=2),
            "enable_moe_block": True,
            "num_experts": 128,
            "top_k_experts": 8,
            "moe_intermediate_size": 704,
        },
    ),
    "gemma4-31b": ("gemma4_text", (60, 5376, 21504, 32, 16, 256, 262144, 262144), _gemma4(6, 1024, key_heads=4)),
    "lfm2-8b-a1b": (
        "lfm2_moe",
        (24, 2048, 7168, 32, 8, 0, 65536, 128000),
        {
            "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1792,
            "num_dense_layers": 2,
            "tie_word_embeddings": True,
        },
    ),
    "deepseek-v2-lite": (
        "deepseek_v2",
        (27, 2048, 10944, 16, 16, 0, 102400, 163840),
        {
            "q_lora_rank": None,
            "n_routed_experts": 64,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
        },
    ),
    "glm-4.7-flash": ("glm4_moe_lite", (47, 2048, 10240, 20, 20, 0, 154880, 202752), {}),
}
SHAPES = tuple(_SHAPES)
"""Names of the shapes."""


def config_of(name: str, layers: int | None = None) -> dict[str, Any]:
    """Return the checked config of a shape, with its first ``layers`` only if given.

    Raises InputError for an unknown name.
    """
    from ipex_lookahead.checkpoints.config_json import checked_config

    if name not in _SHAPES:
        raise InputError(f"shape is {name!r}; it must be one of {', '.join(SHAPES)}")
    family, sizes, more = _SHAPES[name]
    layers = layers or sizes[0]
    sizes = (layers, *sizes[1:])
    if "layer_types" in more:
        more = {**more, "layer_types": more["layer_types"][:layers]}
    raw = {"model_type": family, **{word: n for word, n in zip(_WORDS, sizes, strict=True) if n}, **more}
    if isinstance(rope := raw.get("rope_scaling"), dict):
        raw["rope_scaling"] = JsonObject(rope)
    return checked_config(JsonObject(raw), name)


def shape_of(name: str) -> ModelSpec:
    """Return the spec of a shape. Raises InputError for an unknown name."""
    from ipex_lookahead.architectures import spec_for

    return spec_for(config_of(name))
