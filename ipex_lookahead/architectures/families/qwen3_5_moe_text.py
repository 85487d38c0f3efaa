"""Qwen3.5 to 3.8 with experts, the text part: a `qwen3_5_text` with mixtures that have a gated shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.experts import check_experts, count, need_counts
from ipex_lookahead.architectures.families import qwen3_5_text
from ipex_lookahead.architectures.hparams import SIZES, Source
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import Experts, Linear, ModelSpec, Place, Tensor


def _check(config: dict[str, Any], source: Source) -> None:
    qwen3_5_text.check_layers(config, source)
    check_experts(config, source, "num_experts", default=256)


def complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Fill in values that GGUF files of this and similar families omit."""
    need_counts(file, file.scalar("general.architecture"))
    qwen3_5_text.complete(file, config)
    config.setdefault("shared_expert_intermediate_size", config["moe_intermediate_size"])


KEYS: ConfigKeys = replace(
    qwen3_5_text.KEYS,
    used={
        **qwen3_5_text.KEYS.used,
        "num_experts": count,
        "num_local_experts": count,
        "num_experts_per_tok": count,
        "moe_intermediate_size": SIZES["intermediate_size"],
        "shared_expert_intermediate_size": SIZES["intermediate_size"],
    },
    defaults={
        **qwen3_5_text.KEYS.defaults,
        "hidden_size": 2048,
        "intermediate_size": 512,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    neutral={**qwen3_5_text.KEYS.neutral, "router_aux_loss_coef": "training only"},
    check=_check,
)
GGUF = GgufKeys(
    "qwen35moe",
    "Qwen3_5MoeForCausalLM",
    used={
        **qwen3_5_text.GGUF.used,
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    },
    constants={**qwen3_5_text.GGUF.constants, "intermediate_size": 512},
    neutral=qwen3_5_text.GGUF.neutral,
    complete=complete,
)


def mixture(names: Names, layer: int) -> Experts:
    """Return the experts of block ``layer``, including a shared expert."""
    config, hidden = names.config, names.hidden
    name = f"model.layers.{layer}.mlp.shared_expert_gate.weight"
    gate = Tensor(
        name, (1, hidden), Place(name, (1, hidden)), Place(f"blk.{layer}.ffn_gate_inp_shexp.weight", (1, hidden))
    )
    return names.experts(
        layer,
        "mlp",
        ("gate_proj", "up_proj", "down_proj"),
        count=config["num_experts"],
        used=config["num_experts_per_tok"],
        inner=config["moe_intermediate_size"],
        shared=names.shared_expert(layer, "mlp.shared_expert", config["shared_expert_intermediate_size"]),
        shared_gate=Linear(gate),
    )


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a qwen3_5_moe_text ``config``."""
    return qwen3_5_text.decoder(config, mixture)
