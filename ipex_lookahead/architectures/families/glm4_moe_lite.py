"""GLM-4.7-Flash: a DeepSeek-V3 with a list of the dense layers; its GGUF files belong to that family."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import latent, routing
from ipex_lookahead.architectures.families import deepseek_v3
from ipex_lookahead.architectures.hparams import (
    Source,
    check_one_per_layer,
    list_of,
)
from ipex_lookahead.architectures.keys import ConfigKeys
from ipex_lookahead.architectures.mtp import with_mtp_block
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import Block, ModelSpec

DENSE, SPARSE = "dense", "sparse"


def _check(config: dict[str, Any], source: Source) -> None:
    layers, first = config["num_hidden_layers"], config.pop("first_k_dense_replace")
    if config["mlp_layer_types"] is None:
        config["mlp_layer_types"] = [DENSE if i < first else SPARSE for i in range(layers)]
    check_one_per_layer(config, source, "mlp_layer_types")
    latent.check(config, source)
    routing.check(config, source, default=64)


KEYS = ConfigKeys(
    used={**deepseek_v3.KEYS.used, "mlp_layer_types": list_of(DENSE, SPARSE)},
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
    """Return the decoder for a glm4_moe_lite ``config``."""
    names, turn = Names(config), latent.latent_rope(config)

    def block(i: int) -> Block:
        feed_forward = routing.by_sigmoid(names, i, dense=config["mlp_layer_types"][i : i + 1] == [DENSE])
        return names.block(i, latent.latent_attention(names, i, turn), feed_forward)

    model = names.model(block, read_past=routing.read_past(config))
    return with_mtp_block(model, names, block, config["num_nextn_predict_layers"])
