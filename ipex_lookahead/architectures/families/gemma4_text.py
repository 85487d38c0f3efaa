"""Gemma 4 for text (text part of E2B, E4B, 26B-A4B and 31B): two head sizes, shared keys, and per-layer embeddings.

Some layers have a window; the others, including the last, have full attention. The latter have a separate head size,
and with ``attention_k_eq_v`` a separate number of key heads and the output of the key projection as values. The last
``num_kv_shared_layers`` layers use the keys and values of the last earlier layer of their kind. The 26B has experts in
parallel to each MLP (``enable_moe_block``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ipex_lookahead.architectures.experts import check_total, count
from ipex_lookahead.architectures.hparams import MAX_LAYERS, SIZES, Source, boolean, integer, number, one_of, shown
from ipex_lookahead.architectures.images import both_ways
from ipex_lookahead.architectures.keys import LOCAL_THETA, ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.rope import local_rope, rope
from ipex_lookahead.architectures.rules import GELU, soft_cap
from ipex_lookahead.architectures.spec import (
    Activation,
    Attention,
    Block,
    Experts,
    FeedForward,
    GatedMlp,
    Linear,
    ModelSpec,
    Norm,
    PerLayerGate,
    PerLayerInputs,
    Place,
    Rope,
    Tensor,
)  # fmt: skip
from ipex_lookahead.architectures.windows import FULL, fill_layer_types, gguf_layer_types, window_of
from ipex_lookahead.errors import UnsupportedModelError

_EVERY = 6
_NEAR_SIZE = "head_dim_of_windows"
_SIZE, _COUNT = "global_head_dim", "num_global_key_value_heads"
_OVERRIDES = {"head_dim": _SIZE, "num_key_value_heads": _COUNT}
_OWN = "per_layer_config"
_MOE, _USED = "enable_moe_block", "top_k_experts"
_GELU = Activation("gelu_tanh")
_PLE, _PLE_VOCAB = "hidden_size_per_layer_input", "vocab_size_per_layer_input"


def _overrides(source: Source, key: str, value: Any) -> dict[str, Any]:
    """Check transformers' replacement of the hub's two keys: sizes by layer number."""
    good = isinstance(value, dict) and all(
        isinstance(one, dict) and str(layer).isdecimal() and {*one} <= {*_OVERRIDES} for layer, one in value.items()
    )
    if not good:
        raise source.error(key, f"is {shown(value)}; it must map layer numbers to head_dim and num_key_value_heads")
    return {
        str(layer): {name: SIZES[name](source, key, size) for name, size in one.items()} for layer, one in value.items()
    }


def _read_overrides(config: dict[str, Any], source: Source) -> None:
    """Convert ``per_layer_config`` to the hub's keys; only equal sizes of all full-attention layers are supported."""
    given = config.pop(_OWN)
    usual_sizes = {name: config[name] for name in _OVERRIDES}
    found = [{**usual_sizes, **given.get(str(i), {})} for i in range(config["num_hidden_layers"])]
    for i, kind in enumerate(config["layer_types"]):
        wanted = next(found[k] for k, other in enumerate(config["layer_types"]) if other == FULL)
        if found[i] != (wanted if kind == FULL else usual_sizes) or int(max(given, key=int, default="0")) >= len(found):
            raise UnsupportedModelError(
                f"{source.file}: {source.spelling(_OWN)} gives layer {i} {shown(found[i])}; layers with a window must"
                " have the model's sizes, and all others equal sizes"
            )
    config[_SIZE] = wanted["head_dim"]
    heads = wanted["num_key_value_heads"]
    if heads != config["num_key_value_heads"] and not config["attention_k_eq_v"]:
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling(_OWN)} gives layers {heads} key heads, but attention_k_eq_v is false;"
            f" there must be {config['num_key_value_heads']}, as in num_key_value_heads"
        )
    config[_COUNT] = heads if config["attention_k_eq_v"] else None


def check_layers(config: dict[str, Any], source: Source) -> None:
    """Check everything except the sharing of keys, and modify the config in place."""
    fill_layer_types(config, source, lambda layer: (layer + 1) % _EVERY != 0)
    config["layer_types"][-1] = FULL  # transformers overrides the last entry
    config.pop("partial_rotary_factor", None)  # moved to rope_scaling
    if config["rope_scaling"] is None:  # mark unscaled rope explicitly, because the family's default differs
        config["rope_scaling"] = {"rope_type": "proportional", "partial_rotary_factor": 1.0}
    if config.get(_OWN) is not None:
        _read_overrides(config, source)
    config.pop(_OWN, None)
    heads, kv_heads = config["num_attention_heads"], config[_COUNT]
    if kv_heads is not None and heads % kv_heads:
        raise source.error(_COUNT, f"is {kv_heads}, which does not divide the {heads} attention heads")
    if config[_SIZE] % 8:
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling(_SIZE)} is {config[_SIZE]}; head sizes must be multiples of 8"
        )
    if config[_PLE] and config[_PLE_VOCAB] < config["vocab_size"]:
        raise source.error(
            _PLE_VOCAB,
            f"is {config[_PLE_VOCAB]}, less than vocab_size {config['vocab_size']}; each token needs a row",
        )
    _check_experts(config, source)


def _check(config: dict[str, Any], source: Source) -> None:
    check_layers(config, source)
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    own = config["layer_types"][: layers - shared]
    if shared > layers or {*own} != {*config["layer_types"]}:
        raise source.error(
            "num_kv_shared_layers", f"is {shared} of {layers}, which leaves no layer of some kind with its own keys"
        )


def _check_experts(config: dict[str, Any], source: Source) -> None:
    if not config[_MOE]:
        return
    for key in ("num_experts", _USED, "moe_intermediate_size"):
        if config[key] is None:
            raise source.error(key, f"is missing, but {_MOE} is true")
    check_total(source, "num_experts", config["num_experts"], config["num_hidden_layers"])
    if config[_USED] > config["num_experts"]:
        raise source.error(_USED, f"is {config[_USED]}, more than the {config['num_experts']} experts")


def _by_layer(file: GgufSource, config: dict[str, Any], key: str, name: str) -> list[int]:
    given = file.metadata.get(name, config[key])
    layers = config["num_hidden_layers"]
    values = [int(one) for one in given] if isinstance(given, np.ndarray) else [int(given)] * layers
    source = Source.at(file.path, {key: (name, file.offsets.get(name))})
    return [SIZES[key](source, key, one) for one in values]


def complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Fill in head sizes and counts by kind of layer, and values that follow from tensors."""
    prefix = file.scalar("general.architecture")

    def refuse(key: str, problem: str) -> Exception:
        return UnsupportedModelError(f"{file.path}: {prefix}.{key} {problem}, which is not supported")

    if config["rope_scaling"] is None:
        raise file.error("rope_freqs.weight", None, "is missing from the file")
    config.setdefault("sliding_window", 512)
    gguf_layer_types(file, config, prefix, every=_EVERY)
    kinds, layers = config["layer_types"], config["num_hidden_layers"]
    key = f"{prefix}.attention.key_length_swa"
    place = Source.at(file.path, {_NEAR_SIZE: (key, file.offsets.get(key))})
    config[_SIZE] = config["head_dim"]
    config["head_dim"] = SIZES["head_dim"](place, _NEAR_SIZE, config.pop(_NEAR_SIZE, config["head_dim"]))
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if (size := file.scalar(f"{prefix}.{key}", config["head_dim"])) != config["head_dim"]:
            raise refuse(key, f"is {shown(size)}, not the head size {config['head_dim']} of layers with a window")
    heads = _by_layer(file, config, "num_key_value_heads", f"{prefix}.attention.head_count_kv")
    near, far = (
        [one for one, kind in zip(heads, kinds, strict=True) if (kind == FULL) is full] for full in (False, True)
    )
    if any(len({*of}) > 1 for of in (near, far)):
        raise refuse("attention.head_count_kv", "differs between layers of a kind")
    config["num_key_value_heads"] = near[0] if near else far[0]
    shared = config.setdefault("num_kv_shared_layers", 0)
    without = {f"blk.{i}.attn_v.weight" not in file.tensors for i in range(layers - int(shared)) if kinds[i] == FULL}
    if len(without) > 1:
        raise UnsupportedModelError(f"{file.path}: only some layers with full attention have attn_v.weight")
    config["attention_k_eq_v"] = without == {True}
    if shared == layers:  # an assistant has neither keys nor values
        config["attention_k_eq_v"] = near[:1] != far[:1]
    config[_COUNT] = far[0] if far and config["attention_k_eq_v"] else None
    if far and far[0] != config["num_key_value_heads"] and not config["attention_k_eq_v"]:
        raise refuse("attention.head_count_kv", "differs by kind of layer, although all have attn_v.weight")
    inner = _by_layer(file, config, "intermediate_size", f"{prefix}.feed_forward_length")
    own = inner[: layers - int(shared)]
    config["use_double_wide_mlp"] = bool(shared) and inner[-1] != inner[0]
    if len({*own}) > 1 or {*inner[len(own) :]} - {inner[0] * (2 if config["use_double_wide_mlp"] else 1)}:
        raise refuse("feed_forward_length", "is not one size, doubled for layers that share keys")
    config["intermediate_size"] = inner[0]
    config.setdefault(_PLE, 0)
    config["use_bidirectional_attention"] = None if config[_PLE] else "vision"  # E2B and E4B are causal
    config[_MOE] = bool(config.get("num_experts"))
    if (table := file.tensors.get("per_layer_token_embd.weight")) is not None:
        config[_PLE_VOCAB] = table.shape[0]


KEYS = ConfigKeys(
    used={
        **common_keys("tie_word_embeddings attention_bias sliding_window layer_types"),
        "hidden_activation": one_of(GELU),
        "use_bidirectional_attention": both_ways,
        LOCAL_THETA: SIZES["rope_theta"],
        "partial_rotary_factor": number(0, 1),
        "final_logit_softcapping": soft_cap,
        "attention_k_eq_v": boolean,
        "num_kv_shared_layers": integer(0, MAX_LAYERS),
        "use_double_wide_mlp": boolean,
        _PLE: integer(0, 1 << 16),
        _PLE_VOCAB: SIZES["vocab_size"],
        _SIZE: SIZES["head_dim"],
        _COUNT: SIZES["num_key_value_heads"],
        _OWN: _overrides,
        _MOE: boolean,
        "num_experts": count,
        _USED: count,
        "moe_intermediate_size": SIZES["intermediate_size"],
    },
    defaults={  # complete, because the text part of a larger model omits transformers' defaults
        "vocab_size": 262144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        LOCAL_THETA: 10000.0,
        "hidden_activation": GELU,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "sliding_window": 512,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": None,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        _PLE: 256,
        _PLE_VOCAB: 262144,
        _SIZE: 512,
        _COUNT: None,
        _MOE: False,
        "num_experts": None,
        _USED: None,
        "moe_intermediate_size": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    },
    nullable=(
        "final_logit_softcapping",
        "use_bidirectional_attention",
        _COUNT,
        "num_experts",
        _USED,
        "moe_intermediate_size",
    ),
    neutral={
        "cache_implementation": "how keys and values are cached; this package has its own cache",
    },
    check=_check,
)
GGUF = GgufKeys(
    "gemma4",
    "Gemma4ForCausalLM",
    used={
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        LOCAL_THETA: "rope.freq_base_swa",
        "final_logit_softcapping": "final_logit_softcapping",
        "num_kv_shared_layers": "attention.shared_kv_layers",
        _PLE: "embedding_length_per_layer_input",
        _NEAR_SIZE: "attention.key_length_swa",
        "num_experts": "expert_count",
        _USED: "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    constants={"attention_bias": False, "image_token_id": 258880},
    complete=complete,
    least_of=("intermediate_size", "num_key_value_heads"),
    still_pairs=True,
)


def _config_of(config: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """Return the config of layer ``layer``, with its heads and MLP size."""
    found = dict(config)
    if config["layer_types"][layer] == FULL:
        found["head_dim"] = config[_SIZE]
        if config["attention_k_eq_v"] and config[_COUNT] is not None:
            found["num_key_value_heads"] = config[_COUNT]
    if config["use_double_wide_mlp"] and _source(config, layer) is not None:
        found["intermediate_size"] = 2 * config["intermediate_size"]
    return found


def _source(config: Mapping[str, Any], layer: int) -> int | None:
    """Return the layer that provides the keys and values of layer ``layer``; None if they are its own."""
    kinds, first = config["layer_types"], config["num_hidden_layers"] - config["num_kv_shared_layers"]
    return None if layer < first else max(i for i in range(first) if kinds[i] == kinds[layer])


def _attention(names: Names, layer: int, turn: Rope, source: int | None) -> Attention:
    config = names.config
    made = names.attention(layer, rope=turn, scale=1.0, head_norms=True, value_norm=config["rms_norm_eps"])
    if source is not None:
        return replace(made, k=None, v=None, k_norm=None, value_norm=None, shared=source)
    is_one = config["attention_k_eq_v"] and window_of(config, layer) is None
    return replace(made, v=None) if is_one else made


def _feed_forward(names: Names, layer: int) -> FeedForward:
    """Return the MLP, alone or in parallel to experts (26B), which have two tensors as in transformers."""
    config, hidden = names.config, names.hidden
    mlp = names.gated_mlp(layer, activation=_GELU)
    if not config[_MOE]:
        return mlp
    of, inner = config["num_experts"], config["moe_intermediate_size"]
    hf, gguf = f"model.layers.{layer}.experts", f"blk.{layer}.ffn_"

    def part(expert: int, name: str) -> Linear:
        if name == "down":
            shape, whole, first, fused = (hidden, inner), (of, hidden, inner), None, ("down_proj", "down_exps")
        else:
            shape, whole, first = (inner, hidden), (of, 2 * inner, hidden), (0 if name == "gate" else inner, 1)
            fused = ("gate_up_proj", "gate_up_exps")
        places = (
            Place(f"{hf}.{fused[0]}", whole, expert, first),
            Place(f"{gguf}{fused[1]}.weight", whole, expert, first),
        )
        return Linear(Tensor(f"{hf}.{expert}.{name}_proj.weight", shape, *places))

    router = f"model.layers.{layer}.router"
    scale = names.tensor(f"{router}.scale", f"{gguf}gate_inp.scale", (hidden,))
    return Experts(
        router_norm=Norm(scale, names.epsilon),
        router_multiplier=hidden**-0.5,
        router=names.linear(layer, "router.proj", "ffn_gate_inp", of, hidden),
        expert_scales=names.tensor(f"{router}.per_expert_scale", f"{gguf}down_exps.scale", (of,)),
        norm=names.norm(layer, "pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        experts=tuple(GatedMlp(part(e, "gate"), part(e, "up"), part(e, "down"), _GELU) for e in range(of)),
        after=names.norm(layer, "post_feedforward_layernorm_2", "post_ffw_norm_2"),
        shared=mlp,
        shared_after=names.norm(layer, "post_feedforward_layernorm_1", "post_ffw_norm_1"),
        used=config[_USED],
        scores="all",
        renormalize=True,
    )


def _per_layer_inputs(names: Names) -> PerLayerInputs | None:
    config = names.config
    if not (width := config[_PLE]):
        return None
    layers = config["num_hidden_layers"]
    total = layers * width

    def weight(hf: str, gguf: str, *shape: int) -> Tensor:
        return names.tensor(f"model.{hf}.weight", f"{gguf}.weight", shape)

    return PerLayerInputs(
        width=width,
        layers=layers,
        table=weight("embed_tokens_per_layer", "per_layer_token_embd", config[_PLE_VOCAB], total),
        table_multiplier=width**0.5,
        projection=Linear(weight("per_layer_model_projection", "per_layer_model_proj", total, names.hidden)),
        projection_multiplier=names.hidden**-0.5,
        norm=Norm(weight("per_layer_projection_norm", "per_layer_proj_norm", width), names.epsilon),
        multiplier=2.0**-0.5,
    )


def _per_layer(names: Names, i: int) -> dict[str, Any]:
    if not (width := names.config[_PLE]):
        return {}
    gate = PerLayerGate(
        layer=i,
        gate=names.linear(i, "per_layer_input_gate", "inp_gate", width, names.hidden),
        out=names.linear(i, "per_layer_projection", "proj", names.hidden, width),
    )
    return {"per_layer": gate, "per_layer_after": names.norm(i, "post_per_layer_input_norm", "post_norm")}


def blocks(config: Mapping[str, Any], source: Callable[[int], int | None]) -> Callable[[int], Block]:
    """Return a function that creates blocks; ``source`` returns the layer that provides a block's keys, or None."""
    config = dict(config)
    far, near = rope({**config, "head_dim": config[_SIZE]}), local_rope(config, config[LOCAL_THETA])

    def block(i: int) -> Block:
        names = Names(_config_of(config, i))
        return Block(
            mixer=_attention(names, i, far if window_of(config, i) is None else near, source(i)),
            feed_forward=_feed_forward(names, i),
            mixer_norm=names.norm(i, "input_layernorm", "attn_norm"),
            mixer_after=names.norm(i, "post_attention_layernorm", "post_attention_norm"),
            feed_forward_norm=names.norm(i, "pre_feedforward_layernorm", "ffn_norm"),
            feed_forward_after=names.norm(i, "post_feedforward_layernorm", "post_ffw_norm"),
            output_scale=names.vector(i, "layer_scalar", "layer_output_scale.weight", 1),
            **_per_layer(names, i),
        )

    return block


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a gemma4_text ``config``."""
    names = Names(config)
    return names.model(
        blocks(config, lambda i: _source(config, i)),
        per_layer=_per_layer_inputs(names),
        unread=tuple(  # ignored by transformers as well
            place
            for i in range(config["num_hidden_layers"])
            if _source(config, i) is not None
            for one in "kv"
            for place in (
                f"model.layers.{i}.self_attn.{one}_proj.",
                f"model.layers.{i}.self_attn.{one}_norm.",
                f"blk.{i}.attn_{one}.",
                f"blk.{i}.attn_{one}_norm.",
            )
        ),
        embedding_multiplier=config["hidden_size"] ** 0.5,
        logit_softcap=config["final_logit_softcapping"],
    )
