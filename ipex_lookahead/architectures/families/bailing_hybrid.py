"""Ling 3: Kimi delta attention with bounded decays, latent attention with gated heads, and DeepSeek-V3's mixtures.

MTP blocks are not used for drafting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures import kda, latent, routing
from ipex_lookahead.architectures.experts import need_counts
from ipex_lookahead.architectures.hparams import MAX_LAYERS, Source, boolean, integer, number, one_of, shown
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.mamba import MAX_KERNEL
from ipex_lookahead.architectures.mtp import renamed
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import Block, LatentAttention, ModelSpec, Place, Tensor
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal


def _no_limits(source: Source, key: str, value: Any) -> list[Any]:
    """Check for a list of limits per layer, none of which is set."""
    if not isinstance(value, list) or any(one not in (None, 0) for one in value):
        raise UnsupportedModelError(f"{source.file}: {source.spelling(key)} is {shown(value)}; it must not set limits")
    return value


def _check(config: dict[str, Any], source: Source) -> None:
    kda.rename(config)
    layers, group = config["num_hidden_layers"], config.pop("layer_group_size")
    config["linear_head_dim"] = config["linear_head_dim"] or config["head_dim"]
    config["linear_num_heads"] = config["linear_num_heads"] or config["num_attention_heads"]
    if (kernel := config.pop("short_conv_kernel_size", None)) is not None:
        config["linear_conv_kernel_dim"] = kernel
    if config["layer_types"] is None and layers % group:
        problem = f"is {group}, which does not divide {layers} layers; what the last ones are has no agreed meaning"
        raise source.error("layer_group_size", problem)
    if config["layer_types"] is None:
        config["layer_types"] = [kda.LINEAR if (i + 1) % group else kda.FULL for i in range(layers)]
    kda.check(config, source, experts=512)
    inner = config.pop("moe_shared_expert_intermediate_size", None)
    wanted = config["n_shared_experts"] * config["moe_intermediate_size"]
    if inner is not None and inner != wanted:
        raise source.error("moe_shared_expert_intermediate_size", f"is {inner}; shared experts have {wanted} in total")


KEYS = ConfigKeys(
    used={
        **kda.KEYS,
        "layer_group_size": integer(1, MAX_LAYERS),
        "short_conv_kernel_size": integer(1, MAX_KERNEL),
        "kda_safe_gate": boolean,
        "kda_lower_bound": number(-1e3, -1e-3),
        "moe_shared_expert_intermediate_size": integer(1, 1 << 22),
        "gated_attention_proj_granularity_type": one_of("head_wise"),
        "expert_swiglu_limit_list": _no_limits,
        "share_expert_swiglu_limit_list": _no_limits,
    },
    defaults={
        **kda.DEFAULTS, "vocab_size": 157184, "hidden_size": 2560, "intermediate_size": 6144, "num_hidden_layers": 42,
        "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 6000000.0,
        "linear_head_dim": None, "linear_num_heads": None, "layer_group_size": 6, "kda_safe_gate": True,
        "kda_lower_bound": -5.0, "moe_intermediate_size": 768, "routed_scaling_factor": 2.5, "n_group": 8,
        "topk_group": 4, "first_k_dense_replace": 2,
    },
    nullable=kda.NULLABLE,
    neutral={**kda.NEUTRAL, "mtp_loss_scaling_factor": "training only"},
    refused={
        "attention_bias": Refusal("adds biases to attention", unless=(None, False)),
        "no_kda_lora": Refusal("makes decays and gates products of two matrices", unless=(None, True)),
    },
    check=_check,
)  # fmt: skip


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    need_counts(file, "bailingmoe3")
    kda.complete(file, config)


GGUF = GgufKeys(
    "bailingmoe3",
    "BailingMoeV3ForCausalLM",
    used={
        **kda.GGUF_USED,
        "kda_safe_gate": "kda.safe_gate",
        "kda_lower_bound": "kda.gate_lower_bound",
        "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    },
    neutral={
        **kda.GGUF_NEUTRAL,
        "rope.dimension_sections": "index of a pair's position among three, which are equal for text",
    },
    refused={"swiglu_clamp_exp": Refusal(), "swiglu_clamp_shexp": Refusal()},
    without_attention=kda.LINEAR,
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a bailing_hybrid ``config``."""
    names, turn = Names(config), latent.latent_rope(config)
    bound = config["kda_lower_bound"] if config["kda_safe_gate"] else None

    def attention(i: int) -> LatentAttention:
        mixer = latent.latent_attention(names, i, turn)
        gate = names.linear(i, "self_attn.g_proj", "attn_gate", names.heads, names.hidden)
        o = kda.known_as(mixer.o, f"model.layers.{i}.attention.dense.weight")
        found: LatentAttention = renamed(
            replace(mixer, gate=gate, o=o), f"model.layers.{i}.self_attn.", f"model.layers.{i}.attention."
        )
        return found

    def block(i: int) -> Block:
        feed_forward = routing.by_sigmoid(names, i, dense=config["mlp_layer_types"][i] == kda.DENSE)
        if config["layer_types"][i] == kda.FULL:
            return names.block(i, attention(i), feed_forward)
        return names.block(i, kda.delta_attention(names, i, "attention", low_rank=False, bound=bound), feed_forward)

    table = (config["vocab_size"], names.hidden)
    # AutoModel's part of transformers has embed_tokens.
    place = Place("model.word_embeddings.weight", table, also=("model.embed_tokens.weight",))
    embedding = Tensor(place.name, table, place, Place("token_embd.weight", table))
    return names.model(block, embedding=embedding, read_past=routing.read_past(config))
