"""LFM2 with experts (8B-A1B): an `lfm2` with a few dense layers first, then mixtures with a sigmoid router."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.experts import check_experts, count, need_counts
from ipex_lookahead.architectures.families import lfm2
from ipex_lookahead.architectures.hparams import MAX_LAYERS, SIZES, Source, boolean, integer, number
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import FeedForward, ModelSpec, Place, Tensor


def _check(config: dict[str, Any], source: Source) -> None:
    lfm2.check(config, source)
    check_experts(config, source, "num_experts", default=32)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    need_counts(file, "lfm2moe")
    first = config["num_dense_layers"]
    config["use_expert_bias"] = f"blk.{first}.exp_probs_b.bias" in file.tensors
    config["norm_eps"] = config["rms_norm_eps"]


_DENSE = ("block_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier", "block_auto_adjust_ff_dim", "full_attn_idxs")
KEYS = ConfigKeys(
    used={
        **{key: check for key, check in lfm2.KEYS.used.items() if key not in _DENSE},
        "num_dense_layers": integer(0, MAX_LAYERS),
        "num_experts": count,
        "num_local_experts": count,
        "num_experts_per_tok": count,
        "moe_intermediate_size": SIZES["intermediate_size"],
        "norm_topk_prob": boolean,
        "use_expert_bias": boolean,
        "routed_scaling_factor": number(1e-6, 1e6),
    },
    defaults={
        **{key: value for key, value in lfm2.KEYS.defaults.items() if key not in _DENSE},
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "num_dense_layers": 2,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
        "norm_topk_prob": True,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.0,
    },
    nullable=lfm2.KEYS.nullable,
    neutral={"output_router_logits": "additional outputs"},
    check=_check,
)
GGUF = GgufKeys(
    "lfm2moe",
    "Lfm2MoeForCausalLM",
    used={
        "conv_L_cache": "shortconv.l_cache",
        "num_dense_layers": "leading_dense_block_count",
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    constants={"conv_bias": False, "norm_topk_prob": True},
    neutral={"expert_gating_func": "sigmoid in all models of the architecture"},
    without_attention=lfm2.CONV,
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for an lfm2_moe ``config``."""

    def feed_forward(names: Names, layer: int) -> FeedForward:
        if layer < config["num_dense_layers"]:
            return lfm2.mlp(names, layer)
        ours, theirs = f"model.layers.{layer}.feed_forward.expert_bias", f"blk.{layer}.exp_probs_b.bias"
        shape = (config["num_experts"],)
        return names.experts(
            layer,
            "feed_forward",
            ("w1", "w3", "w2"),
            count=config["num_experts"],
            used=config["num_experts_per_tok"],
            inner=config["moe_intermediate_size"],
            renormalize=config["norm_topk_prob"],
            scores="sigmoid",
            sum_epsilon=1e-6,
            scale=config["routed_scaling_factor"],
            correction=Tensor(ours, shape, Place(ours, shape), Place(theirs, shape))
            if config["use_expert_bias"]
            else None,
        )

    return lfm2.decoder(config, feed_forward)
