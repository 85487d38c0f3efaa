"""EXAONE 4 (LG): norms after attention and MLP and over heads of q and k; with windows, rope in those layers only."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.families import olmo2
from ipex_lookahead.architectures.hparams import MAX_LAYERS, Source, shown
from ipex_lookahead.architectures.keys import LOCAL_THETA, ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.architectures.windows import SLIDING, fill_layer_types, gguf_layer_types, window_pattern
from ipex_lookahead.errors import UnsupportedModelError

_LAYERS_OF_32B = 64


def _pattern(source: Source, key: str, value: Any) -> Any:
    """A check for how layers take turns: each nth sees all, or letters, L for a window and G for all."""
    if isinstance(value, str) and 0 < len(value) <= MAX_LAYERS and not {*value} - {*"LG"}:
        return value
    return 0 if type(value) is int and value == 0 else window_pattern(source, key, value)


def _check(config: dict[str, Any], source: Source) -> None:
    every = config.pop("sliding_window_pattern")
    if config.get("layer_types") is None and config["sliding_window"] is not None and not isinstance(every, int):
        raise UnsupportedModelError(
            f"{source.file}: sliding_window_pattern is {shown(every)}, and there are no layer_types; transformers"
            " reads such a pattern nowhere",
            hint="name the layers in layer_types",
        )
    if every == 0 and config["sliding_window"] is not None and config.get("layer_types") is None:
        raise source.error("sliding_window_pattern", "is 0, but there is a sliding_window")
    fill_layer_types(config, source, lambda layer: (layer + 1) % every != 0)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    theta = config["rope_theta"]
    if (local := config.pop(LOCAL_THETA, theta)) != theta:
        raise UnsupportedModelError(
            f"{file.path}: exaone4.rope.freq_base_swa is {shown(local)}; an EXAONE 4 has one base here, {theta:g}"
        )
    config.setdefault("sliding_window", 4096 if config["num_hidden_layers"] == _LAYERS_OF_32B else None)
    gguf_layer_types(file, config, "exaone4", every=4)


KEYS = ConfigKeys(
    used={
        **usual("hidden_act tie_word_embeddings sliding_window layer_types"),
        "sliding_window_pattern": _pattern,
    },
    defaults={
        "num_key_value_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    nullable=("sliding_window",),
    check=_check,
)
GGUF = GgufKeys(
    "exaone4",
    "Exaone4ForCausalLM",
    used={
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        LOCAL_THETA: "rope.freq_base_swa",
    },
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that an exaone4 ``config`` describes."""
    names, turn = Names(config), rope(config)
    hybrid = config["sliding_window"] is not None

    def block(i: int) -> Block:
        turns = not hybrid or config["layer_types"][i] == SLIDING
        return olmo2.after(names, i, names.attention(i, rope=turn if turns else None, head_norms=True))

    return names.model(block)
