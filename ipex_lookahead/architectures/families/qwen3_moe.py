"""Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder: Qwen3's attention, and a mixture of many small experts."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.experts import check_experts, need_counts
from ipex_lookahead.architectures.hparams import MAX_LAYERS, SIZES, Source, boolean, integer, shown
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import FeedForward, ModelSpec
from ipex_lookahead.architectures.windows import one_kind_of_layer
from ipex_lookahead.errors import UnsupportedModelError


def _layers(source: Source, key: str, value: Any) -> list[int]:
    """A check for a list of layers' numbers, each of which stands for itself however often it is named."""
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < MAX_LAYERS for one in value):
        raise source.error(key, f"is {shown(value)}; it must be a list of layers' numbers, from 0")
    return sorted(set(value))


def check_dense(config: dict[str, Any], source: Source) -> None:
    """Refuse a layer without experts that there is not."""
    dense, layers = config["mlp_only_layers"], config["num_hidden_layers"]
    if dense and dense[-1] >= layers:
        raise source.error("mlp_only_layers", f"names layer {dense[-1]}; the last of {layers} is {layers - 1}")


def is_dense(config: dict[str, Any], layer: int) -> bool:
    """Whether a layer has an MLP instead of experts."""
    return layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"] != 0


def _check(config: dict[str, Any], source: Source) -> None:
    check_experts(config, source, "num_experts", usual=128)
    check_dense(config, source)
    full = config.pop("max_window_layers", None)
    if not config["use_sliding_window"]:
        config["sliding_window"] = None
    elif full and config["sliding_window"] is not None:
        raise UnsupportedModelError(
            f"{source.file}: max_window_layers is {full} and use_sliding_window true; some releases of transformers "
            "give all layers a window then, others those from that one on. It must be 0, or not there"
        )


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    need_counts(file, "qwen3moe")
    if "moe_intermediate_size" not in config:  # the first files have it by this rule alone
        config["moe_intermediate_size"] = max(1, config["intermediate_size"] // config["num_experts_per_tok"])


KEYS: ConfigKeys = ConfigKeys(
    used={
        **usual(
            "hidden_act tie_word_embeddings attention_bias use_sliding_window sliding_window"
            " max_window_layers num_experts num_local_experts num_experts_per_tok"
        ),
        "moe_intermediate_size": SIZES["intermediate_size"],
        "norm_topk_prob": boolean,
        "decoder_sparse_step": integer(1, MAX_LAYERS),
        "mlp_only_layers": _layers,
    },
    defaults={
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    nullable=("sliding_window",),
    neutral={
        "output_router_logits": "what is returned beside the logits",
        "router_aux_loss_coef": "training only",
    },
    refused=one_kind_of_layer("Qwen3-MoE"),
    check=_check,
)
GGUF = GgufKeys(
    "qwen3moe",
    "Qwen3MoeForCausalLM",
    used={
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    constants={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False},
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a qwen3_moe ``config`` describes."""
    names, turn = Names(config), rope(config)

    def feed_forward(i: int) -> FeedForward:
        if is_dense(config, i):
            return names.gated_mlp(i)
        return names.experts(
            i,
            "mlp",
            ("gate_proj", "up_proj", "down_proj"),
            count=config["num_experts"],
            used=config["num_experts_per_tok"],
            inner=config["moe_intermediate_size"],
            renormalise=config["norm_topk_prob"],
        )

    return names.model(lambda i: names.block(i, names.attention(i, rope=turn, head_norms=True), feed_forward(i)))
