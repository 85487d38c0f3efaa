"""Mixtures of DeepSeek and similar families: grouped routed experts, shared experts, and dense first layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_lookahead.architectures.experts import check_total, count
from ipex_lookahead.architectures.hparams import MAX_LAYERS, SIZES, Check, Source, boolean, integer, number
from ipex_lookahead.architectures.keys import GgufSource
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import FeedForward, Place, Tensor

MAX_DRAFTING = 16
SOFTMAX, SIGMOID = 1, 2
"""Values of ``expert_gating_func`` in GGUF files."""

KEYS: Mapping[str, Check] = {
    "n_routed_experts": count,
    "num_experts": count,
    "num_local_experts": count,
    "n_shared_experts": integer(0, 64),
    "num_experts_per_tok": count,
    "moe_intermediate_size": SIZES["intermediate_size"],
    "routed_scaling_factor": number(1e-6, 1e6),
    "norm_topk_prob": boolean,
    "n_group": count,
    "topk_group": count,
    "first_k_dense_replace": integer(0, MAX_LAYERS),
    "num_nextn_predict_layers": integer(0, MAX_DRAFTING),
    "num_mtp_layers": integer(0, MAX_DRAFTING),
}
GGUF_USED: Mapping[str, str] = {
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "num_nextn_predict_layers": "nextn_predict_layers",
}


def check(config: dict[str, Any], source: Source, *, default: int) -> None:
    """Store each parameter under one name, fill in defaults, and check them against each other.

    Args:
        config: the config, modified in place.
        source: its source.
        default: default number of experts.

    Raises:
        ModelFormatError: if the values are inconsistent.
    """
    one_name(config, source, "n_routed_experts", ("num_experts", "num_local_experts"))
    one_name(config, source, "num_nextn_predict_layers", ("num_mtp_layers",))
    config.setdefault("num_nextn_predict_layers", 1)
    config.setdefault("n_routed_experts", default)
    experts, used, groups = config["n_routed_experts"], config["num_experts_per_tok"], config["n_group"]
    check_total(source, "n_routed_experts", experts, config["num_hidden_layers"])
    if experts % groups:
        raise source.error("n_group", f"is {groups}, which does not divide {experts} experts")
    if config["topk_group"] > groups:
        raise source.error("topk_group", f"is {config['topk_group']}, more than the {groups} groups")
    if used > experts // groups * config["topk_group"]:
        raise source.error("num_experts_per_tok", f"is {used}, more than the experts that can be selected")


def one_name(config: dict[str, Any], source: Source, key: str, others: tuple[str, ...]) -> None:
    """Store a value under ``key`` that may have one of several names; raise ModelFormatError if they differ."""
    for other in others:
        if other in config and config.setdefault(key, config[other]) != config.pop(other):
            raise source.error(other, f"differs from {key}, which is {config[key]}")


def complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Exclude MTP blocks from the number of layers, and fill in values that GGUF files omit."""
    past = config.setdefault("num_nextn_predict_layers", 0)
    if past >= config["num_hidden_layers"]:
        architecture = file.scalar("general.architecture")
        key = f"{architecture}.nextn_predict_layers"
        raise file.error(key, file.offsets[key], f"is {past}; there are {config['num_hidden_layers']} blocks in total")
    config["num_hidden_layers"] -= past
    for key, default in (("n_group", 1), ("topk_group", 1), ("routed_scaling_factor", 1.0), ("norm_topk_prob", False),
                       ("n_shared_experts", 0), ("first_k_dense_replace", 0)):  # fmt: skip
        if key not in config or (key == "routed_scaling_factor" and config[key] == 0):
            config[key] = default
    for key in ("n_group", "topk_group"):
        config[key] = max(1, config[key])


def read_past(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the name prefixes of MTP blocks, which follow the decoder's, in both kinds of files."""
    first = config["num_hidden_layers"]
    past = range(first, first + config["num_nextn_predict_layers"])
    return tuple(name for i in past for name in (f"model.layers.{i}.", f"blk.{i}."))


_PARTS = ("gate_proj", "up_proj", "down_proj")


def feed_forward(
    names: Names,
    layer: int,
    *,
    dense: bool,
    module: str = "mlp",
    parts: tuple[str, str, str] = _PARTS,
    **switches: Any,
) -> FeedForward:
    """Return a block's MLP, or its mixture with all shared experts as one.

    Args:
        names: tensors of the model.
        layer: number of the block.
        dense: True for an MLP.
        module: name of the mixture in a folder.
        parts: names of an expert's gate, up and down in a folder.
        switches: further fields of ``Experts``.
    """
    config = names.config
    if dense:
        return names.gated_mlp(layer)
    shared, inner = config["n_shared_experts"], config["moe_intermediate_size"]
    return names.experts(
        layer,
        module,
        parts,
        count=config["n_routed_experts"],
        used=config["num_experts_per_tok"],
        inner=inner,
        renormalize=config["norm_topk_prob"],
        scale=config["routed_scaling_factor"],
        groups=config["n_group"],
        groups_used=config["topk_group"],
        shared=names.shared_expert(layer, f"{module}.shared_experts", shared * inner) if shared else None,
        **switches,
    )


def by_sigmoid(names: Names, layer: int, *, dense: bool, module: str = "mlp", **names_of: Any) -> FeedForward:
    """Return :func:`feed_forward` with DeepSeek-V3's router; Ling's folders have another name for its bias."""
    gate, theirs = f"model.layers.{layer}.{module}.gate", f"blk.{layer}.exp_probs_b.bias"
    ours, shape = f"{gate}.e_score_correction_bias", (names.config["n_routed_experts"],)
    correction = Tensor(ours, shape, Place(ours, shape, also=(f"{gate}.expert_bias",)), Place(theirs, shape))
    return feed_forward(
        names, layer, dense=dense, scores="sigmoid", sum_epsilon=1e-20, correction=correction, module=module, **names_of
    )
