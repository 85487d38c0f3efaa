"""Qwen1.5-MoE and Qwen2-57B-A14B: Qwen2's attention, a mixture, and an expert for every row behind a gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.experts import check_experts, need_counts
from ipex_lookahead.architectures.families import qwen3_moe
from ipex_lookahead.architectures.hparams import (
    MAX_CONTEXT,
    SIZES,
    Source,
    boolean,
    check_even_heads,
    integer,
    optional,
)
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import FeedForward, ModelSpec
from ipex_lookahead.architectures.windows import fill_layer_types
from ipex_lookahead.errors import UnsupportedModelError


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    check_experts(config, source, "num_experts", usual=60)
    qwen3_moe.check_dense(config, source)
    config.pop("max_window_layers", None)
    if not config["use_sliding_window"] or config["sliding_window"] == 0:
        config["sliding_window"] = None
    elif config.get("layer_types") is None and config["sliding_window"] is not None:
        raise UnsupportedModelError(
            f"{source.file}: use_sliding_window is true, and there are no layer_types; releases of transformers differ"
            " in which layers of a qwen2_moe have the window then",
            hint="name the layers in layer_types",
        )
    fill_layer_types(config, source, lambda layer: False)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    need_counts(file, "qwen2moe")
    if "moe_intermediate_size" not in config:
        config["moe_intermediate_size"] = max(1, config["intermediate_size"] // config["num_experts_per_tok"])
    config.setdefault("shared_expert_intermediate_size", config["intermediate_size"])


KEYS: ConfigKeys = replace(
    qwen3_moe.KEYS,
    used={
        **{key: check for key, check in qwen3_moe.KEYS.used.items() if key != "attention_bias"},
        **usual("layer_types"),
        "sliding_window": optional(integer(0, MAX_CONTEXT)),  # transformers writes 0 for none
        "qkv_bias": boolean,
        "shared_expert_intermediate_size": SIZES["intermediate_size"],
    },
    defaults={
        **{key: value for key, value in qwen3_moe.KEYS.defaults.items() if key != "attention_bias"},
        "num_key_value_heads": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "qkv_bias": True,
    },
    refused={},
    check=_check,
)
GGUF = GgufKeys(
    "qwen2moe",
    "Qwen2MoeForCausalLM",
    used={**qwen3_moe.GGUF.used, "shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
    constants={"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "qkv_bias": True},
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a qwen2_moe ``config`` describes."""
    names, turn = Names(config), rope(config)
    bias = "qkv" if config["qkv_bias"] else ""

    def feed_forward(i: int) -> FeedForward:
        if qwen3_moe.is_dense(config, i):
            return names.gated_mlp(i)
        return names.experts(
            i,
            "mlp",
            ("gate_proj", "up_proj", "down_proj"),
            count=config["num_experts"],
            used=config["num_experts_per_tok"],
            inner=config["moe_intermediate_size"],
            renormalise=config["norm_topk_prob"],
            shared=names.shared_expert(i, "mlp.shared_expert", config["shared_expert_intermediate_size"]),
            shared_gate=names.linear(i, "mlp.shared_expert_gate", "ffn_gate_inp_shexp", 1, names.hidden),
        )

    return names.model(lambda i: names.block(i, names.attention(i, rope=turn, bias=bias), feed_forward(i)))
