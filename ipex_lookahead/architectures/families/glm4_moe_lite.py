"""GLM-4.7-Flash: a DeepSeek-V3 in which a list says which layers are dense; its GGUF files are of that family."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import latent, routing
from ipex_lookahead.architectures.families import deepseek_v3
from ipex_lookahead.architectures.hparams import MAX_LAYERS, Source, shown
from ipex_lookahead.architectures.keys import ConfigKeys
from ipex_lookahead.architectures.mtp import behind
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import Block, ModelSpec

DENSE, SPARSE = "dense", "sparse"


def _kinds(source: Source, key: str, value: Any) -> list[str]:
    """A check for a list of what feed-forwards are."""
    if not isinstance(value, list) or len(value) > MAX_LAYERS or not all(one in (DENSE, SPARSE) for one in value):
        raise source.error(key, f"is {shown(value)}; it must be a list of {DENSE!r} and {SPARSE!r}")
    return [str(one) for one in value]


def _check(config: dict[str, Any], source: Source) -> None:
    layers, first = config["num_hidden_layers"], config.pop("first_k_dense_replace")
    if config["mlp_layer_types"] is None:
        config["mlp_layer_types"] = [DENSE if i < first else SPARSE for i in range(layers)]
    if len(config["mlp_layer_types"]) != layers:
        raise source.error("mlp_layer_types", f"has {len(config['mlp_layer_types'])} values for {layers} layers")
    latent.check(config, source)
    routing.check(config, source, usual=64)


KEYS = ConfigKeys(
    used={**deepseek_v3.KEYS.used, "mlp_layer_types": _kinds},
    defaults={
        **deepseek_v3.KEYS.defaults, "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
        "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20,
        "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "q_lora_rank": 768, "v_head_dim": 256,
        "qk_nope_head_dim": 192, "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "routed_scaling_factor": 1.8,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "mlp_layer_types": None,
    },
    nullable=("q_lora_rank", "mlp_layer_types"),
    neutral=deepseek_v3.NEUTRAL,
    refused=deepseek_v3.KEYS.refused,
    check=_check,
)  # fmt: skip
GGUF = None


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a glm4_moe_lite ``config`` describes."""
    names, turn = Names(config), latent.latent_rope(config)

    def block(i: int) -> Block:
        feed_forward = routing.by_sigmoid(names, i, dense=config["mlp_layer_types"][i : i + 1] == [DENSE])
        return names.block(i, latent.latent_attention(names, i, turn), feed_forward)

    model = names.model(block, read_past=routing.read_past(config))
    return behind(model, names, block, config["num_nextn_predict_layers"])
