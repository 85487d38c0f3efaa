"""StarCoder 2: layer norms, an MLP without a gate, and biases."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import SIZES, Source, boolean, check_even_heads, one_of
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Activation, ModelSpec
from ipex_lookahead.architectures.windows import one_kind_of_layer

_GELU = "gelu_pytorch_tanh"


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    config["rms_norm_eps"] = config["norm_epsilon"]


KEYS = ConfigKeys(
    used={
        **usual("tie_word_embeddings sliding_window"),
        "hidden_act": one_of(_GELU),
        "norm_epsilon": SIZES["rms_norm_eps"],
        "use_bias": boolean,
    },
    defaults={
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "norm_epsilon": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": _GELU,
        "tie_word_embeddings": True,
        "sliding_window": None,
        "use_bias": True,
    },
    nullable=("sliding_window",),
    neutral={
        "embedding_dropout": "zero outside training",
        "residual_dropout": "zero outside training",
        "mlp_type": "names the MLP that all of them have",
        "norm_type": "names the norm that all of them have",
    },
    refused=one_kind_of_layer("StarCoder 2"),
    check=_check,
)
GGUF = GgufKeys(
    "starcoder2",
    "Starcoder2ForCausalLM",
    used={"rms_norm_eps": "attention.layer_norm_epsilon"},
    constants={"sliding_window": None, "use_bias": True},
    complete=lambda file, config: config.update(norm_epsilon=config["rms_norm_eps"]),
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a starcoder2 ``config`` describes."""
    biased = config["use_bias"]
    names = Names({**config, "attention_bias": biased, "mlp_bias": biased}, layer_norm="biased")
    turn, gelu = rope(config), Activation("gelu_tanh")
    return names.model(lambda i: names.block(i, names.attention(i, rope=turn), names.mlp(i, gelu, ("c_fc", "c_proj"))))
