"""OLMoE: a mixture of many small experts, with norms over the whole of q and of k."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.experts import check_experts, need_counts
from ipex_lookahead.architectures.hparams import Source, boolean, check_even_heads
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Attention, Experts, ModelSpec
from ipex_lookahead.architectures.windows import one_kind_of_layer
from ipex_lookahead.files.refusal import Refusal


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    check_experts(config, source, "num_experts", usual=64)


KEYS = ConfigKeys(
    used={
        **usual("hidden_act tie_word_embeddings attention_bias num_experts num_local_experts num_experts_per_tok"),
        "norm_topk_prob": boolean,
    },
    defaults={
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    neutral={
        "output_router_logits": "what is returned beside the logits",
        "router_aux_loss_coef": "training only",
    },
    refused={
        **one_kind_of_layer("OLMoE"),
        "clip_qkv": Refusal("clips queries, keys and values", unless=(None,)),
        "sliding_window": Refusal(
            "limits how far attention reaches back, which transformers' OLMoE does with some kernels only",
            unless=(None,),
        ),
    },
    check=_check,
)
GGUF = GgufKeys(
    "olmoe",
    "OlmoeForCausalLM",
    used={"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
    constants={"norm_topk_prob": False, "attention_bias": False},
    complete=lambda file, config: need_counts(file, "olmoe"),
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that an olmoe ``config`` describes."""
    names, turn = Names(config), rope(config)

    def attention(i: int) -> Attention:
        return names.attention(
            i,
            rope=turn,
            q_norm=names.norm(i, "self_attn.q_norm", "attn_q_norm", names.heads * names.head_dim),
            k_norm=names.norm(i, "self_attn.k_norm", "attn_k_norm", names.kv_heads * names.head_dim),
        )

    def mixture(i: int) -> Experts:
        return names.experts(
            i,
            "mlp",
            ("gate_proj", "up_proj", "down_proj"),
            count=config["num_experts"],
            used=config["num_experts_per_tok"],
            inner=config["intermediate_size"],
            renormalise=config["norm_topk_prob"],
        )

    return names.model(lambda i: names.block(i, attention(i), mixture(i)))
