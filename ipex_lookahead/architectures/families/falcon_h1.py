"""Falcon-H1: attention and Mamba-2 read the same input in every layer, and factors on all of their parts.

GGUF files hold the factors in the weights, so a file and its folder give other bits. For tied embeddings they lack
``lm_head_multiplier``: logits of such files differ by a factor.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import Check, Source, boolean, check_even_heads, integer, number, shown
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.mamba import MAX_HEADS, MAX_KERNEL, MAX_STATE, head_size, mamba2, no_limit
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Activation, Block, GatedMlp, ModelSpec, Norm
from ipex_lookahead.errors import UnsupportedModelError

_MAX_INNER = 1 << 22
factor = number(1e-6, 1e6)


def _factors(count: int) -> Check:
    """Return a check for a list of ``count`` factors."""

    def check(source: Source, key: str, value: Any) -> list[float]:
        if not isinstance(value, list) or len(value) != count:
            raise source.error(key, f"is {shown(value)}; it must be a list of {count} numbers")
        return [factor(source, key, one) for one in value]

    return check


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    heads = config["mamba_n_heads"]
    if config["mamba_d_ssm"] is None:
        config["mamba_d_ssm"] = config["mamba_expand"] * config["hidden_size"]
    if config["mamba_d_head"] == "auto":
        config["mamba_d_head"] = max(1, config["mamba_d_ssm"] // heads)
    if config["mamba_d_head"] * heads != config["mamba_d_ssm"]:
        problem = f"is {heads}; multiplied by the head size {config['mamba_d_head']} it must be {config['mamba_d_ssm']}"
        raise source.error("mamba_n_heads", problem)
    if heads % config["mamba_n_groups"]:
        raise source.error("mamba_n_groups", f"is {config['mamba_n_groups']}, which does not divide {heads} heads")
    for bias, multiplier in (("attention_bias", "attention_in_multiplier"), ("mamba_proj_bias", "ssm_in_multiplier")):
        if config[bias] and config[multiplier] != 1:
            raise UnsupportedModelError(
                f"{source.file}: {source.spelling(multiplier)} is {config[multiplier]}; with {bias} it must be 1"
            )


_FACTORS = (
    "lm_head_multiplier", "embedding_multiplier", "key_multiplier", "attention_out_multiplier",
    "attention_in_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
)  # fmt: skip
_WITHOUT: dict[str, Any] = {**dict.fromkeys(_FACTORS, 1.0), "mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5}
KEYS = ConfigKeys(
    used={
        **common_keys("hidden_act tie_word_embeddings attention_bias mlp_bias"),
        **dict.fromkeys(_FACTORS, factor),
        "mlp_multipliers": _factors(2),
        "ssm_multipliers": _factors(5),
        "projectors_bias": boolean,
        "mamba_d_ssm": integer(1, _MAX_INNER),
        "mamba_n_heads": integer(1, MAX_HEADS),
        "mamba_d_head": head_size,
        "mamba_n_groups": integer(1, MAX_HEADS),
        "mamba_d_state": integer(1, MAX_STATE),
        "mamba_d_conv": integer(1, MAX_KERNEL),
        "mamba_expand": integer(1, 64),
        "mamba_conv_bias": boolean,
        "mamba_proj_bias": boolean,
        "mamba_norm_before_gate": boolean,
        "mamba_rms_norm": boolean,
        "time_step_limit": no_limit,
    },
    defaults={
        "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "mlp_bias": False, "projectors_bias": False, "mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_d_head": "auto",
        "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
        "mamba_proj_bias": False, "mamba_norm_before_gate": True, "mamba_rms_norm": False, **_WITHOUT,
    },
    nullable=("mamba_d_ssm",),
    neutral={
        "attn_layer_indices": "every layer has attention",
        "layer_types": "every layer is of one kind",
        "layers_block_type": "every layer is of one kind",
        "mamba_chunk_size": "the chunk size of prefill in other programs",
        "mamba_use_mlp": "every layer has an MLP",
        "mlp_expansion_factor": "intermediate_size is used instead",
        "num_logits_to_keep": "the positions for which other programs compute logits",
    },
    check=_check,
)  # fmt: skip


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    inner, heads = config.get("mamba_d_ssm"), config.get("mamba_n_heads")
    if type(inner) is not int or type(heads) is not int or not heads or inner % heads:
        problem = f"is {shown(inner)}; {shown(heads)} heads (ssm.time_step_rank) must divide it"
        raise file.error("falcon-h1.ssm.inner_size", None, problem)
    config["mamba_d_head"] = inner // heads
    config["mamba_rms_norm"] = "blk.0.ssm_norm.weight" in file.tensors
    config["mamba_conv_bias"] = "blk.0.ssm_conv1d.bias" in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors


GGUF = GgufKeys(
    "falcon-h1",
    "FalconH1ForCausalLM",
    used={
        "mamba_d_conv": "ssm.conv_kernel",
        "mamba_d_state": "ssm.state_size",
        "mamba_n_groups": "ssm.group_count",
        "mamba_n_heads": "ssm.time_step_rank",
        "mamba_d_ssm": "ssm.inner_size",
    },
    constants={**_WITHOUT, "mamba_norm_before_gate": False, "mamba_proj_bias": False, "projectors_bias": False},
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a falcon_h1 ``config``."""
    names, turn = Names(config), rope(config)
    hidden, inner, bias = names.hidden, config["intermediate_size"], config["mlp_bias"]
    read, written = config["attention_in_multiplier"], config["attention_out_multiplier"]
    by_gate, by_down = config["mlp_multipliers"]

    def mlp(i: int) -> GatedMlp:
        return GatedMlp(
            gate=names.linear(i, "feed_forward.gate_proj", "ffn_gate", inner, hidden, bias=bias),
            up=names.linear(i, "feed_forward.up_proj", "ffn_up", inner, hidden, bias=bias),
            down=names.linear(i, "feed_forward.down_proj", "ffn_down", hidden, inner, bias=bias),
            activation=Activation("silu") if by_gate == 1 else Activation("scaled_silu", by_gate),
        )

    def block(i: int) -> Block:
        # Factors on q and k are factors on scores, and those on v and the output are one factor.
        scale = names.head_dim**-0.5 * config["key_multiplier"] * read**2
        pre_ff = names.tensor(f"model.layers.{i}.pre_ff_layernorm.weight", f"blk.{i}.ffn_norm", (hidden,))
        return Block(
            mixer=names.attention(i, rope=turn, scale=scale),
            second_mixer=mamba2(
                names,
                i,
                "mamba",
                heads=config["mamba_n_heads"],
                head_dim=config["mamba_d_head"],
                groups=config["mamba_n_groups"],
                state=config["mamba_d_state"],
                kernel=config["mamba_d_conv"],
                bias=config["mamba_proj_bias"],
                out_bias=config["projectors_bias"],
                convolution_bias=config["mamba_conv_bias"],
                normed=config["mamba_rms_norm"],
                gate_first=not config["mamba_norm_before_gate"],
                multipliers=tuple(config["ssm_in_multiplier"] * one for one in config["ssm_multipliers"]),
            ),
            feed_forward=mlp(i),
            mixer_norm=names.norm(i, "input_layernorm", "attn_norm"),
            feed_forward_norm=Norm(pre_ff, names.epsilon),
            mixer_multiplier=read * written,
            second_mixer_multiplier=config["ssm_out_multiplier"],
            feed_forward_multiplier=by_down,
        )

    last = names.tensor("model.final_layernorm.weight", "output_norm.weight", (hidden,))
    return names.model(
        block,
        final_norm=Norm(last, names.epsilon),
        embedding_multiplier=config["embedding_multiplier"],
        logit_multiplier=config["lm_head_multiplier"],
    )
