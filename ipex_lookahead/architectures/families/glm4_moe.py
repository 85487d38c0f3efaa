"""GLM-4.5, 4.5-Air, 4.6: partial rotary embedding, and after the first layers a mixture with a sigmoid router."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import routing
from ipex_lookahead.architectures.experts import need_counts
from ipex_lookahead.architectures.hparams import Source, boolean, number
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.mtp import with_mtp_block
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.architectures.windows import one_kind_of_layer


def _check(config: dict[str, Any], source: Source) -> None:
    routing.check(config, source, default=128)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    need_counts(file, "glm4moe")
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors
    routing.complete(file, config)


KEYS = ConfigKeys(
    used={
        **common_keys("hidden_act tie_word_embeddings attention_bias"),
        "partial_rotary_factor": number(0, 1, above=True),
        "use_qk_norm": boolean,
        **routing.KEYS,
    },
    defaults={
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "partial_rotary_factor": 0.5, "use_qk_norm": False, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "moe_intermediate_size": 1408, "routed_scaling_factor": 1.0, "norm_topk_prob": True, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1,
    },
    neutral={"output_router_logits": "additional outputs"},
    refused=one_kind_of_layer("GLM-4.5"),
    check=_check,
)  # fmt: skip
GGUF = GgufKeys(
    "glm4moe",
    "Glm4MoeForCausalLM",
    used=dict(routing.GGUF_USED),
    neutral={
        "expert_gating_func": "sigmoid in all models of the architecture",
        "rope.dimension_sections": "index of a pair's position among three, which are equal for text",
    },
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a glm4_moe ``config``."""
    names, turn = Names(config), rope(config)
    bias = "qkv" if config["attention_bias"] else ""

    def block(i: int) -> Block:
        mixer = names.attention(i, rope=turn, bias=bias, head_norms=config["use_qk_norm"])
        feed_forward = routing.by_sigmoid(names, i, dense=i < config["first_k_dense_replace"])
        norm = names.norm(i, "post_attention_layernorm", "post_attention_norm")
        return names.block(i, mixer, feed_forward, feed_forward_norm=norm)

    model = names.model(block, read_past=routing.read_past(config))
    return with_mtp_block(model, names, block, config["num_nextn_predict_layers"])
