"""What llama.cpp's converter makes of DeepSeek, GLM's mixtures and Nemotron-H: names, keys, latents by head."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
DELTA = ("kimi_linear", "bailing_hybrid")
ROUTED = ("glm4_moe", *LATENT, *DELTA)
NAMES = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    **{f"mlp.shared_experts.{one}_proj": f"ffn_{one}_shexp" for one in ("gate", "up", "down")},
}  # fmt: skip
NEMOTRON_NAMES = {
    "norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d", "mixer.norm": "ssm_norm",
    "mixer.out_proj": "ssm_out", "mixer.gate": "ffn_gate_inp",
    **{f"mixer.{one}_proj": f"attn_{one}" for one in "qkv"}, "mixer.o_proj": "attn_output",
    **{f"mixer.{one}_proj": f"ffn_{one}" for one in ("up", "down")},
    "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up",
    **{f"mixer.shared_experts.{one}_proj": f"ffn_{one}_shexp" for one in ("up", "down")},
}  # fmt: skip


def by_heads(block: str, values: Array, config: Any) -> list[tuple[str, Array]]:
    """``kv_b_proj`` as two tensors, of which the keys' has inputs for outputs."""
    passed, heads = config.qk_nope_head_dim, config.num_attention_heads
    apart = values.reshape(heads, passed + config.v_head_dim, -1)
    return [
        (f"{block}attn_k_b.weight", apart[:, :passed].swapaxes(1, 2)),
        (f"{block}attn_v_b.weight", apart[:, passed:]),
    ]


def dense_layers(config: Any) -> int:
    """How many of the first layers are no mixtures."""
    if config.model_type in ("glm4_moe_lite", *DELTA):
        return int(config.mlp_layer_types.count("dense"))
    return int(config.first_k_dense_replace)


def add_routed(writer: gguf.GGUFWriter, config: Any) -> None:
    """The keys of a mixture, and of latents."""
    writer.add_leading_dense_block_count(dense_layers(config))
    writer.add_expert_count(config.num_local_experts if config.model_type in DELTA else config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if (groups := config.n_group) is not None and groups > 1:
        writer.add_expert_group_count(groups)
        writer.add_expert_group_used_count(config.topk_group)
    softmax = config.model_type == "deepseek_v2"
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX if softmax else gguf.ExpertGatingFuncType.SIGMOID)
    if not softmax and config.norm_topk_prob:
        writer.add_expert_weights_norm(True)
    if config.model_type == "glm4_moe":
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(head * config.rope_parameters["partial_rotary_factor"]))
        return
    writer.add_vocab_size(config.vocab_size)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    if config.model_type in DELTA:
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_kda_head_dim(config.linear_head_dim)
        if config.model_type == "bailing_hybrid":
            writer.add_bool("bailingmoe3.kda.safe_gate", config.kda_safe_gate)
            writer.add_float32("bailingmoe3.kda.gate_lower_bound", config.kda_lower_bound)
            writer.add_expert_shared_feed_forward_length(config.n_shared_experts * config.moe_intermediate_size)
    elif "mscale_all_dim" in config.rope_parameters:
        writer.add_rope_scaling_yarn_log_mul(0.1 * config.rope_parameters["mscale_all_dim"])


def add_nemotron(writer: gguf.GGUFWriter, config: Any) -> None:
    """The keys of Nemotron-H: two arrays say what each layer is, and rope's size of heads is not the heads'."""
    kinds = config.layers_block_type
    mixtures = "moe" in kinds
    inner = config.moe_intermediate_size if mixtures else config.intermediate_size
    writer.add_context_length(2**20)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(len(kinds))
    writer.add_feed_forward_length([inner if one in ("mlp", "moe") else 0 for one in kinds])
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([config.num_key_value_heads if one == "full_attention" else 0 for one in kinds])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_scaling_finetuned(False)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    if mixtures:
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
        if config.moe_latent_size is not None:
            writer.add_moe_latent_size(config.moe_latent_size)
