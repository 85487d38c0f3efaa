"""Kimi Linear: Kimi delta attention in most layers, latent attention without rope, and DeepSeek-V3's mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipex_lookahead.architectures import kda, latent, routing
from ipex_lookahead.architectures.experts import need_counts
from ipex_lookahead.architectures.hparams import Source, layer_numbers, one_of, shown
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import SILU, Names
from ipex_lookahead.architectures.spec import Block, FeedForward, GatedMlp, ModelSpec, Rope
from ipex_lookahead.files.refusal import Refusal

_SIZES = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_LAYERS = {"kda_layers": kda.LINEAR, "full_attn_layers": kda.FULL}


def _linear_attention(source: Source, key: str, value: Any) -> dict[str, Any]:
    """Check for the object with the sizes of delta attention and the numbers of its layers, from 1."""
    if not isinstance(value, dict):
        raise source.error(key, f"is {shown(value)}; it must be an object")
    found = {name: kda.KEYS[ours](source, key, value[name]) for name, ours in _SIZES.items() if name in value}
    return found | {name: layer_numbers(source, key, value[name]) for name in _LAYERS if name in value}


def _check(config: dict[str, Any], source: Source) -> None:
    kda.rename(config)
    config["rope_scaling"] = None  # there is no rope
    given, layers = config.pop("linear_attn_config", None) or {}, config["num_hidden_layers"]
    config |= {ours: given[name] for name, ours in _SIZES.items() if name in given}
    if config["layer_types"] is None and all(name in given for name in _LAYERS):
        numbers = {number: kind for name, kind in _LAYERS.items() for number in given[name]}
        if sorted(numbers) != [*range(1, layers + 1)]:
            problem = f"has the layers {shown(sorted(numbers))}; it must have each of 1 to {layers} in one of its lists"
            raise source.error("linear_attn_config", problem)
        config["layer_types"] = [numbers[i + 1] for i in range(layers)]
    if config["layer_types"] is None:
        config["layer_types"] = [kda.FULL if i and i % 4 == 0 else kda.LINEAR for i in range(layers)]
    kda.check(config, source, experts=256)


KEYS = ConfigKeys(
    used={
        **kda.KEYS,
        "linear_attn_config": _linear_attention,
        "moe_router_activation_func": one_of("sigmoid"),
    },
    defaults={
        **kda.DEFAULTS, "vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27,
        "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "linear_head_dim": 128,
        "linear_num_heads": 32, "moe_intermediate_size": 1024, "routed_scaling_factor": 2.446, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    },
    nullable=kda.NULLABLE,
    neutral={**kda.NEUTRAL, "use_grouped_topk": "num_expert_group is used instead"},
    refused={
        "attention_bias": Refusal("adds biases to attention", unless=(None, False)),
        "mla_use_nope": Refusal("adds rope to latent attention", unless=(None, True)),
        "moe_layer_freq": Refusal("adds dense layers between the mixtures", unless=(1,)),
    },
    check=_check,
)  # fmt: skip


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    need_counts(file, "kimi-linear")
    config.setdefault("norm_topk_prob", True)
    kda.complete(file, config)


GGUF = GgufKeys(
    "kimi-linear",
    "KimiLinearForCausalLM",
    used=kda.GGUF_USED,
    neutral=kda.GGUF_NEUTRAL,
    without_attention=kda.LINEAR,
    rotates=False,
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a kimi_linear ``config``."""
    names = Names(config)
    still = Rope(np.zeros(config["qk_rope_head_dim"] // 2, np.float32))  # rotates by 0

    def feed_forward(i: int) -> FeedForward:
        if config["mlp_layer_types"][i] == kda.SPARSE:
            return routing.by_sigmoid(names, i, dense=False, module="block_sparse_moe", parts=("w1", "w3", "w2"))
        mlp, moe = names.gated_mlp(i), f"model.layers.{i}.block_sparse_moe"
        assert mlp.gate is not None
        gate, up, down = (
            kda.known_as(one, f"{moe}.{name}_proj.weight")
            for one, name in ((mlp.gate, "gate"), (mlp.up, "up"), (mlp.down, "down"))
        )
        return GatedMlp(gate, up, down, SILU)

    def block(i: int) -> Block:
        if config["layer_types"][i] == kda.FULL:
            return names.block(i, latent.latent_attention(names, i, still), feed_forward(i))
        return names.block(i, kda.delta_attention(names, i, "self_attn", low_rank=True, bound=None), feed_forward(i))

    return names.model(block, read_past=routing.read_past(config))
