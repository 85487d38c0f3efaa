"""Gemma 2: norms before and after attention and MLP, soft caps on scores and logits, a window on every second layer."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import (
    Source,
    check_even_heads,
    integer,
    number,
    one_of,
    optional,
    shown,
)
from ipex_lookahead.architectures.keys import LOCAL_THETA, ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Activation, Block, ModelSpec, Rope
from ipex_lookahead.architectures.windows import fill_layer_types, gguf_layer_types
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

soft_cap = optional(number(1e-3, 1e6))
"""A check for the bound that scores or logits are bent to, or null for none."""

GELU = "gelu_pytorch_tanh"
_LAYERS_OF_27B = 46


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    fill_layer_types(config, source, lambda layer: layer % 2 == 0)


def fill_query_scalar(config: dict[str, Any], layers_of_27b: int) -> None:
    """Whose root a query's products are divided by. No key of GGUF says, so llama.cpp knows the 27B by its depth."""
    heads = config["num_attention_heads"]
    is_27b = config["num_hidden_layers"] == layers_of_27b
    config["query_pre_attn_scalar"] = config["hidden_size"] // heads if is_27b else config["head_dim"]


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    local = config.pop(LOCAL_THETA, config["rope_theta"])
    if local != config["rope_theta"]:
        raise UnsupportedModelError(
            f"{file.path}: gemma2.rope.freq_base_swa is {shown(local)}; a Gemma 2 has one base of rope here, "
            f"{config['rope_theta']:g}"
        )
    config.setdefault("sliding_window", 4096)
    gguf_layer_types(file, config, "gemma2", every=2)
    fill_query_scalar(config, _LAYERS_OF_27B)


KEYS = ConfigKeys(
    used={
        **usual("tie_word_embeddings attention_bias sliding_window layer_types"),
        "hidden_activation": one_of(GELU),
        "query_pre_attn_scalar": integer(1, 1 << 20),
        "attn_logit_softcapping": soft_cap,
        "final_logit_softcapping": soft_cap,
    },
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_activation": GELU,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    },
    nullable=("sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    neutral={
        "cache_implementation": "how keys and values are kept, which is this package's own affair",
        "hidden_act": "the first Gemma's word, beside hidden_activation, which transformers reads",
        "sliding_window_size": "an older word that some files have beside sliding_window, which transformers reads",
    },
    refused={"use_bidirectional_attention": Refusal("lets every token see the ones behind it", unless=(None, False))},
    check=_check,
)
GGUF = GgufKeys(
    "gemma2",
    "Gemma2ForCausalLM",
    used={
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        LOCAL_THETA: "rope.freq_base_swa",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    constants={"attention_bias": False},
    complete=_complete,
)


def names(config: dict[str, Any]) -> Names:
    """Gemma's tensors: the files of Hugging Face hold what is added to 1 in a norm."""
    return Names(config, norm_offset=1.0)


def block(names: Names, i: int, turn: Rope, **switches: Any) -> Block:
    """Attention and MLP between two norms each; ``switches`` are further ones of the attention."""
    return Block(
        mixer=names.attention(
            i,
            rope=turn,
            scale=names.config["query_pre_attn_scalar"] ** -0.5,
            **switches,
        ),
        feed_forward=names.gated_mlp(i, activation=Activation("gelu_tanh")),
        mixer_norm=names.norm(i, "input_layernorm", "attn_norm"),
        mixer_after=names.norm(i, "post_attention_layernorm", "post_attention_norm"),
        feed_forward_norm=names.norm(i, "pre_feedforward_layernorm", "ffn_norm"),
        feed_forward_after=names.norm(i, "post_feedforward_layernorm", "post_ffw_norm"),
    )


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a gemma2 ``config`` describes."""
    made, turn = names(config), rope(config)
    return made.model(
        lambda i: block(made, i, turn, softcap=config["attn_logit_softcapping"]),
        embedding_multiplier=config["hidden_size"] ** 0.5,
        logit_softcap=config["final_logit_softcapping"],
    )
