"""Llama-2, Llama-3.x, TinyLlama, SmolLM2 and everything else that calls itself ``llama``."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import Source, check_even_heads, shown, text
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.errors import UnsupportedModelError

_UNUSED_LAYER_TYPES = ("full_attention", "attention")


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    if config["hidden_act"] != "silu":
        raise UnsupportedModelError(
            f"{source.file}: hidden_act is {shown(config['hidden_act'])}; a Llama here has 'silu' only"
        )
    window, context = config.pop("sliding_window", None), config["max_position_embeddings"]
    if window is not None and not (type(window) is int and window >= context):
        raise UnsupportedModelError(
            f"{source.file}: sliding_window is {shown(window)}, a limit on how far attention reaches back; it must be"
            f" null, or not below max_position_embeddings ({shown(context)})"
        )
    types = config.pop("layer_types", None)
    if types is not None and not (isinstance(types, list) and all(one in _UNUSED_LAYER_TYPES for one in types)):
        raise UnsupportedModelError(
            f"{source.file}: layer_types is {shown(types)}; every layer must have full_attention"
        )


KEYS = ConfigKeys(
    used={
        **usual("tie_word_embeddings attention_bias mlp_bias"),
        "hidden_act": text,
        "sliding_window": lambda source, key, value: value,
        "layer_types": lambda source, key, value: value,
    },
    defaults={
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    neutral={"pretraining_tp": "the same products in slices; the sums round a little differently"},
    check=_check,
)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors


def is_dense(file: GgufSource) -> bool:
    """Whether a file of the architecture has no experts: with some it is a mixtral."""
    return bool(file.scalar("llama.expert_count", 0) == 0)


def has_even_heads(file: GgufSource) -> bool:
    """Whether the heads divide the hidden size, as transformers' Llama needs it; with others it is a mistral."""
    hidden, heads = (file.metadata.get(f"llama.{key}") for key in ("embedding_length", "attention.head_count"))
    return not (type(hidden) is int and type(heads) is int and heads > 0 and hidden % heads)


GGUF = GgufKeys(
    "llama",
    "LlamaForCausalLM",
    constants={"hidden_act": "silu"},
    complete=_complete,
    claims=lambda file: is_dense(file) and has_even_heads(file),
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a llama ``config`` describes. Raises UnsupportedModelError for what this package cannot run."""
    names, turn = Names(config, pairs=True), rope(config)
    return names.model(lambda i: names.block(i, names.attention(i, rope=turn), names.gated_mlp(i)))
