"""Gemma 3 for text (270M, 1B, and the larger ones' text part): most layers have a window and a rope of their own."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.families import gemma2
from ipex_lookahead.architectures.hparams import SIZES, Source, check_even_heads, integer, one_of
from ipex_lookahead.architectures.keys import LOCAL_THETA, ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import usual
from ipex_lookahead.architectures.rope import local_rope, rope
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.architectures.windows import fill_layer_types, gguf_layer_types, window_of
from ipex_lookahead.files.refusal import Refusal

_LAYERS_OF_27B = 62


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    every = config.pop("sliding_window_pattern")
    fill_layer_types(config, source, lambda layer: (layer + 1) % every != 0)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    config.setdefault("sliding_window", None)
    gguf_layer_types(file, config, "gemma3", every=6)
    gemma2.fill_query_scalar(config, _LAYERS_OF_27B)


KEYS = ConfigKeys(
    used={
        **usual("tie_word_embeddings attention_bias sliding_window layer_types"),
        "hidden_activation": one_of(gemma2.GELU),
        "query_pre_attn_scalar": integer(1, 1 << 20),
        "sliding_window_pattern": integer(1, 1 << 16),
        LOCAL_THETA: SIZES["rope_theta"],
        "final_logit_softcapping": gemma2.soft_cap,
    },
    defaults={  # all of them: the text part of a larger model leaves out what is as transformers has it
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        LOCAL_THETA: 10000.0,
        "hidden_activation": gemma2.GELU,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "final_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    },
    nullable=("sliding_window", "final_logit_softcapping"),
    neutral={"cache_implementation": "how keys and values are kept, which is this package's own affair"},
    refused={
        "attn_logit_softcapping": Refusal("caps scores, which transformers' Gemma 3 passes over", unless=(None,)),
        "use_bidirectional_attention": Refusal("lets every token see the ones behind it", unless=(None, False)),
    },
    check=_check,
)
GGUF = GgufKeys(
    "gemma3",
    "Gemma3ForCausalLM",
    used={
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        LOCAL_THETA: "rope.freq_base_swa",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    constants={"attention_bias": False},
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a gemma3_text ``config`` describes."""
    names, far, near = gemma2.names(config), rope(config), local_rope(config, config[LOCAL_THETA])

    def block(i: int) -> Block:
        return gemma2.block(
            names,
            i,
            far if window_of(config, i) is None else near,
            head_norms=True,
        )

    return names.model(
        block,
        embedding_multiplier=config["hidden_size"] ** 0.5,
        logit_softcap=config["final_logit_softcapping"],
    )
