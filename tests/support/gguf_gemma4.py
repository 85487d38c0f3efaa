"""What llama.cpp's converter writes for Gemma 4 alone: sizes by kind of layer, and pairs that stand still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.support.family_table import FULL, SLIDING

EXPERTS = {
    "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight",
    "router.proj.weight": "ffn_gate_inp.weight", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
}  # fmt: skip
"""What a file calls the parts of a mixture beside an MLP."""


def text_config(model: Any) -> Any:
    """The text part's config; Gemma 4's as plain values, since transformers gives no size that layers differ in."""
    config = model.config.get_text_config()
    if config.model_type not in ("gemma4_text", "gemma4_unified_text"):
        return config
    lacks = {"hidden_size_per_layer_input": 0, "enable_moe_block": False}  # a file of the 12B has them so
    plain = SimpleNamespace(**{**lacks, **config.to_dict(), "model_type": "gemma4_text"})
    plain.get_text_config = lambda: plain
    return plain


def full_sizes(config: Any) -> tuple[int, int]:
    """Head size and key heads of a Gemma 4's layers that see all."""
    own = config.per_layer_config
    sizes = own.get(config.layer_types.index(FULL), own.get(str(config.layer_types.index(FULL)), {}))
    return sizes.get("head_dim", config.head_dim), sizes.get("num_key_value_heads", config.num_key_value_heads)


def add_gemma4(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)
    slides, shared = [one == SLIDING for one in config.layer_types], config.num_kv_shared_layers
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    size, kv_heads = full_sizes(config)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count(size)
    writer.add_rope_dimension_count_swa(config.head_dim)
    keys = writer.kv_data[0]  # the converter writes these anew
    for key in ("key_length", "value_length"):
        keys[f"gemma4.attention.{key}"].value = size
    if kv_heads != config.num_key_value_heads:
        del keys["gemma4.attention.head_count_kv"]
        writer.add_head_count_kv([config.num_key_value_heads if one else kv_heads for one in slides])
    if config.use_double_wide_mlp:
        inner, own = config.intermediate_size, config.num_hidden_layers - shared
        del keys["gemma4.feed_forward_length"]
        writer.add_feed_forward_length([inner * (1 if i < own else 2) for i in range(config.num_hidden_layers)])


def still_pairs(config: Any, share: float) -> dict[str, npt.NDArray[np.float32]]:
    """Divisors of frequencies: 1 of those that turn, and so large that nothing turns of the others."""
    half = full_sizes(config)[0] // 2
    turning = int(half * share)
    return {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (half - turning), np.float32)}
