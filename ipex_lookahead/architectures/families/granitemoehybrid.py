"""Granite 4: Mamba-2 in most layers or in none, and attention; an MLP for all rows, and experts in the larger models.

GGUF files of models with attention in every layer have architecture ``granite`` and belong to that family.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import granite
from ipex_lookahead.architectures.dense import multipliers
from ipex_lookahead.architectures.experts import MAX_EXPERTS, check_total
from ipex_lookahead.architectures.families.dense import FAMILIES
from ipex_lookahead.architectures.hparams import (
    SIZES,
    Check,
    Source,
    boolean,
    check_even_heads,
    check_one_per_layer,
    integer,
    one_of,
    shown,
)
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.mamba import MAX_HEADS, MAX_KERNEL, MAX_STATE, head_size, mamba2, no_limit, of_words
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import (
    Attention,
    Block,
    FeedForward,
    Mamba2,
    ModelSpec,
)

RECURRENT, FULL = "mamba", "full_attention"
layer_types: Check = of_words(
    ("linear_attention", RECURRENT), (FULL, FULL), (RECURRENT, RECURRENT), ("attention", FULL)
)


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    layers = config["num_hidden_layers"]
    if config["layer_types"] is None:
        config["layer_types"] = [RECURRENT] * layers
    check_one_per_layer(config, source, "layer_types")
    if RECURRENT in config["layer_types"]:
        _check_recurrent(config, source)
    experts, used = config["num_local_experts"], config["num_experts_per_tok"]
    check_total(source, "num_local_experts", experts, layers)
    if experts and not 0 < used <= experts:
        raise source.error("num_experts_per_tok", f"is {used}; it must be from 1 to num_local_experts, {experts}")


def _check_recurrent(config: dict[str, Any], source: Source) -> None:
    inner, heads = config["mamba_expand"] * config["hidden_size"], config["mamba_n_heads"]
    if config["mamba_d_head"] == "auto":
        config["mamba_d_head"] = max(1, inner // heads)
    if config["mamba_d_head"] * heads != inner:
        raise source.error(
            "mamba_n_heads", f"is {heads}; multiplied by the head size {config['mamba_d_head']} it must be {inner}"
        )
    if heads % config["mamba_n_groups"]:
        raise source.error("mamba_n_groups", f"is {config['mamba_n_groups']}, which does not divide {heads} heads")


_GRANITE = FAMILIES["granite"]
KEYS = ConfigKeys(
    used={
        **{key: check for key, check in _GRANITE.KEYS.used.items() if key != "mlp_bias"},
        "attention_bias": boolean,
        "shared_intermediate_size": SIZES["intermediate_size"],
        "num_local_experts": integer(0, MAX_EXPERTS),
        "num_experts_per_tok": integer(0, MAX_EXPERTS),
        "position_embedding_type": one_of("rope", "nope"),
        "layer_types": layer_types,
        "layers_block_type": layer_types,
        "mamba_n_heads": integer(1, MAX_HEADS),
        "mamba_n_groups": integer(1, MAX_HEADS),
        "mamba_d_state": integer(1, MAX_STATE),
        "mamba_d_head": head_size,
        "mamba_d_conv": integer(1, MAX_KERNEL),
        "mamba_expand": integer(1, 64),
        "mamba_conv_bias": boolean,
        "mamba_proj_bias": boolean,
        "time_step_limit": no_limit,
    },
    defaults={
        **{key: value for key, value in _GRANITE.KEYS.defaults.items() if key != "mlp_bias"}, "vocab_size": 32000,
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "shared_intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2,
        "position_embedding_type": None, "layer_types": None, "mamba_n_heads": 128, "mamba_n_groups": 1,
        "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    },
    neutral={
        "mamba_chunk_size": "the chunk size of prefill in other programs",
        "output_router_logits": "additional outputs",
        "router_aux_loss_coef": "training only",
    },
    check=_check,
)  # fmt: skip


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    inner, heads, hidden = config.pop("mamba_inner_size", None), config.get("mamba_n_heads"), config["hidden_size"]
    if type(inner) is not int or heads is None or inner % heads or inner % hidden:
        problem = f"is {shown(inner)}; {shown(heads)} heads (ssm.time_step_rank) and {hidden} must divide it"
        raise file.error("granitehybrid.ssm.inner_size", None, problem)
    config["mamba_d_head"], config["mamba_expand"] = inner // heads, inner // hidden
    recurrent = config["layer_types"].index(RECURRENT) if RECURRENT in config["layer_types"] else 0
    config["mamba_conv_bias"] = f"blk.{recurrent}.ssm_conv1d.bias" in file.tensors
    config["mamba_proj_bias"] = f"blk.{recurrent}.ssm_in.bias" in file.tensors
    config["attention_bias"] = False
    config.setdefault("num_local_experts", 0)
    config.setdefault("shared_intermediate_size", config["intermediate_size"])
    config.setdefault("attention_multiplier", config["head_dim"] ** -0.5)
    # Files without this key were written for the one hybrid with rope.
    config["position_embedding_type"] = "rope" if file.scalar("granitehybrid.rope.scaling.finetuned", True) else "nope"


GGUF = GgufKeys(
    "granitehybrid",
    "GraniteMoeHybridForCausalLM",
    used={
        **_GRANITE.GGUF.used,
        "mamba_d_conv": "ssm.conv_kernel",
        "mamba_d_state": "ssm.state_size",
        "mamba_n_groups": "ssm.group_count",
        "mamba_n_heads": "ssm.time_step_rank",
        "mamba_inner_size": "ssm.inner_size",
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "shared_intermediate_size": "expert_shared_feed_forward_length",
    },
    neutral={"rope.scaling.finetuned": "whether attention uses rope; read separately"},
    without_attention=RECURRENT,
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a granitemoehybrid ``config``."""
    names = Names(config, pairs=True)
    turn = rope(config) if config["position_embedding_type"] == "rope" else None
    experts = config["num_local_experts"]

    def mixer(i: int) -> Attention | Mamba2:
        if config["layer_types"][i] == FULL:
            bias = "qkvo" if config["attention_bias"] else ""
            return names.attention(i, rope=turn, bias=bias, scale=config["attention_multiplier"])
        return mamba2(
            names,
            i,
            "mamba",
            heads=config["mamba_n_heads"],
            head_dim=config["mamba_d_head"],
            groups=config["mamba_n_groups"],
            state=config["mamba_d_state"],
            kernel=config["mamba_d_conv"],
            bias=config["mamba_proj_bias"],
            convolution_bias=config["mamba_conv_bias"],
        )

    def block(i: int) -> Block:
        mlp = granite.shared_mlp(names, i, "_shexp" if experts else "")
        feed_forward: FeedForward = granite.mixture(names, i, mlp) if experts else mlp
        return Block(
            mixer=mixer(i),
            feed_forward=feed_forward,
            mixer_norm=names.norm(i, "input_layernorm", "attn_norm"),
            feed_forward_norm=names.norm(i, "post_attention_layernorm", "ffn_norm"),
            residual_multiplier=config["residual_multiplier"],
        )

    return names.model(block, **multipliers(config))
