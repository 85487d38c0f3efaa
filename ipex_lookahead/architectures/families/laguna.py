"""Laguna (poolside): windows with a rope of their own, a softplus gate on attention, and after it a sigmoid router.

Layers may differ in their number of query heads. The gate has one value per head or one per value of a head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ipex_lookahead.architectures.experts import check_total, need_counts
from ipex_lookahead.architectures.hparams import (
    MAX_LAYERS,
    SIZES,
    Source,
    check_one_per_layer,
    integer,
    list_of,
    number,
    shown,
)
from ipex_lookahead.architectures.keys import LOCAL_SHARE, LOCAL_THETA, ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.rope import local_rope, rope
from ipex_lookahead.architectures.spec import Block, GatedMlp, Linear, ModelSpec, Place, Tensor
from ipex_lookahead.architectures.windows import FULL, SLIDING, fill_layer_types, window_of
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

PER_HEAD, PER_ELEMENT = "per-head", "per-element"
DENSE, SPARSE = "dense", "sparse"


def _gating(source: Source, key: str, value: Any) -> bool | str:
    """Check the granularity of the gate; true is the first releases' word for one gate per head."""
    word = value.replace("_", "-") if isinstance(value, str) else value
    if word is not True and word not in (PER_HEAD, PER_ELEMENT):
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling(key)} is {shown(value)}; it must be true, {PER_HEAD!r} or {PER_ELEMENT!r}"
        )
    return word if word is True else str(word)


def _gating_types(source: Source, key: str, value: Any) -> list[bool | str]:
    """Check the list of the gates' granularities by layer."""
    if not isinstance(value, list) or not value or len(value) > MAX_LAYERS:
        raise source.error(key, f"is {shown(value)}; it must be a list of {PER_HEAD!r} and {PER_ELEMENT!r}")
    return [_gating(source, key, one) for one in value]


def _heads(source: Source, key: str, value: Any) -> list[int]:
    """Check the list of the numbers of query heads by layer."""
    if not isinstance(value, list) or len(value) > MAX_LAYERS:
        raise source.error(key, f"is {shown(value)}; it must be a list of numbers of heads")
    return [SIZES["num_attention_heads"](source, key, one) for one in value]


def _check(config: dict[str, Any], source: Source) -> None:
    layers, kv_heads = config["num_hidden_layers"], config["num_key_value_heads"]
    fill_layer_types(config, source, lambda layer: False)
    config.setdefault("mlp_layer_types", [DENSE, *[SPARSE] * (layers - 1)][:layers])
    config.setdefault("num_attention_heads_per_layer", [config["num_attention_heads"]] * layers)
    for key in ("mlp_layer_types", "num_attention_heads_per_layer"):
        check_one_per_layer(config, source, key)
    for heads in config["num_attention_heads_per_layer"]:
        if heads % kv_heads:
            problem = f"has {heads} heads, which are not a multiple of the {kv_heads} key heads"
            raise source.error("num_attention_heads_per_layer", problem)
    types = config.pop("gating_types", [config["gating"]])
    if {one == PER_ELEMENT for one in types} != {config["gating"] == PER_ELEMENT}:
        raise UnsupportedModelError(
            f"{source.file}: gating_types is {shown(types)}, and gating is {config['gating']!r}; all layers must have "
            "the gate that gating names"
        )
    check_total(source, "num_experts", config["num_experts"], layers)
    if config["num_experts_per_tok"] > config["num_experts"]:
        problem = f"is {config['num_experts_per_tok']}; there are {config['num_experts']} experts"
        raise source.error("num_experts_per_tok", problem)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Fill in values per layer, and the gate's granularity, which is that of its tensor."""
    need_counts(file, "laguna")
    layers = config["num_hidden_layers"]
    heads = file.metadata["laguna.attention.head_count"]
    if isinstance(heads, np.ndarray):
        config["num_attention_heads_per_layer"] = [int(one) for one in heads]
    dense = _number(file, "leading_dense_block_count", 0, 0, layers)
    config["mlp_layer_types"] = [DENSE] * dense + [SPARSE] * (layers - dense)
    config.setdefault("sliding_window", None)
    slides = _slides(file, layers)
    config["layer_types"] = [SLIDING if one and config["sliding_window"] is not None else FULL for one in slides]
    config.setdefault(LOCAL_THETA, config["rope_theta"])
    head = config["head_dim"]
    config[LOCAL_SHARE] = _number(file, "rope.dimension_count_swa", head, 1, head) / head
    config.setdefault("shared_expert_intermediate_size", config["moe_intermediate_size"])
    config.setdefault("moe_routed_scaling_factor", 1.0)
    gate, first = "blk.0.attn_gate.weight", config.get("num_attention_heads_per_layer", [config["num_attention_heads"]])
    if gate not in file.tensors:
        raise file.error(gate, None, "is missing")
    config["gating"] = PER_HEAD if file.tensors[gate].shape[0] == first[0] else PER_ELEMENT


def _number(file: GgufSource, name: str, default: int, low: int, high: int) -> int:
    """Return a whole number from a GGUF file."""
    key = f"laguna.{name}"
    at = Source.at(file.path, {key: (key, file.offsets.get(key))})
    return integer(low, high)(at, key, file.metadata.get(key, default))


def _slides(file: GgufSource, layers: int) -> list[bool]:
    """Return whether each layer has a window: a list of the file, or all layers but each nth, the first included."""
    name = "attention.sliding_window_pattern"
    key, pattern = f"laguna.{name}", file.metadata.get(f"laguna.{name}")
    if not isinstance(pattern, np.ndarray):
        every = _number(file, name, 4, 1, MAX_LAYERS)
        return [i % every != 0 for i in range(layers)]
    if pattern.dtype.kind not in "biu" or len(pattern) != layers or not ((pattern == 0) | (pattern == 1)).all():
        raise file.error(key, file.offsets.get(key), f"is {shown(pattern)}; it must be a list of {layers} bools")
    return [bool(one) for one in pattern]


KEYS = ConfigKeys(
    used={
        **common_keys(
            "hidden_act tie_word_embeddings attention_bias sliding_window layer_types num_experts num_experts_per_tok"
        ),
        "partial_rotary_factor": number(0, 1, above=True),
        LOCAL_THETA: SIZES["rope_theta"],
        LOCAL_SHARE: number(0, 1, above=True),
        "gating": _gating,
        "gating_types": _gating_types,
        "num_attention_heads_per_layer": _heads,
        "mlp_layer_types": list_of(DENSE, SPARSE),
        "moe_intermediate_size": SIZES["intermediate_size"],
        "shared_expert_intermediate_size": SIZES["intermediate_size"],
        "moe_routed_scaling_factor": number(1e-6, 1e6),
    },
    defaults={
        "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40,
        "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "partial_rotary_factor": 0.5, LOCAL_THETA: 10000.0,
        LOCAL_SHARE: 1.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "sliding_window": 512, "gating": True, "num_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "moe_routed_scaling_factor": 1.0,
    },
    nullable=("sliding_window",),
    neutral={"output_router_logits": "additional outputs", "router_aux_loss_coef": "training only"},
    refused={
        "moe_apply_router_weight_on_input": Refusal(
            "applies the experts' weights to their inputs, which transformers does not do", unless=(None, False)
        ),
        "moe_router_logit_softcapping": Refusal("caps the router's logits", unless=(None, 0)),
    },
    check=_check,
)  # fmt: skip
GGUF = GgufKeys(
    "laguna",
    "LagunaForCausalLM",
    used={
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "moe_routed_scaling_factor": "expert_weights_scale",
        "sliding_window": "attention.sliding_window",
        LOCAL_THETA: "rope.freq_base_swa",
        "rope_scaling.attention_factor": "rope.scaling.yarn_attn_factor",
    },
    constants={"attention_bias": False},
    neutral={
        "attention.sliding_window_pattern": "read with the layers with a window",
        "leading_dense_block_count": "read with the layers that have an MLP",
        "expert_gating_func": "sigmoid in all models of the architecture",
        "expert_shared_count": "always one, with a key of its own for the size",
        "rope.dimension_count_swa": "read with the rope of layers with a window",
    },
    refused={"expert_weights_norm": Refusal(unless=(1,))},
    least_of=("num_attention_heads",),
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a laguna ``config``."""
    names, far = Names(config), rope(config)
    near = local_rope({**config, "partial_rotary_factor": config[LOCAL_SHARE]}, config[LOCAL_THETA])

    def block(i: int) -> Block:
        heads = config["num_attention_heads_per_layer"][i]
        own = Names({**config, "num_attention_heads": heads})
        gates = heads * names.head_dim if config["gating"] == PER_ELEMENT else heads
        mixer = own.attention(
            i,
            rope=far if window_of(config, i) is None else near,
            head_norms=True,
            gate=names.linear(i, "self_attn.g_proj", "attn_gate", gates, names.hidden),
            gate_kind="softplus",
        )
        if config["mlp_layer_types"][i] == DENSE:
            return names.block(i, mixer, names.gated_mlp(i))
        experts = config["num_experts"]
        bias = names.vector(i, "mlp.gate.e_score_correction_bias", "exp_probs_b.bias", experts)
        mixture = names.experts(
            i,
            "mlp",
            ("gate_proj", "up_proj", "down_proj"),
            count=experts,
            used=config["num_experts_per_tok"],
            inner=config["moe_intermediate_size"],
            scores="sigmoid",
            scale=config["moe_routed_scaling_factor"],
            correction=_placed(bias, "gate", "experts"),
            shared=_shared(names, i),
        )
        return names.block(i, mixer, mixture)

    return names.model(block)


def _shared(names: Names, layer: int) -> GatedMlp:
    """Return the shared expert, of which checkpoints have another name than transformers' modules."""
    made = names.shared_expert(layer, "mlp.shared_experts", names.config["shared_expert_intermediate_size"])

    def placed(linear: Linear) -> Linear:
        return Linear(_placed(linear.weight, "shared_experts", "shared_expert"))

    assert made.gate is not None
    return replace(made, gate=placed(made.gate), up=placed(made.up), down=placed(made.down))


def _placed(tensor: Tensor, module: str, name: str) -> Tensor:
    """Return a weight of a module with another name in folders."""
    place: Place = replace(tensor.hf, name=tensor.hf.name.replace(f".mlp.{module}.", f".mlp.{name}."))
    return replace(tensor, hf=place)
