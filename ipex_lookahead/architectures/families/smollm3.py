"""SmolLM3: a Llama in which every fourth layer has no rope."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import Source, check_even_heads, integer, shown
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.architectures.windows import fill_layer_types


def _flags(source: Source, key: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(one) is int and one in (0, 1) for one in value):
        raise source.error(key, f"is {shown(value)}; it must be a list of 0 (no rope) and 1, one a layer")
    return list(value)


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    layers, interval = config["num_hidden_layers"], config.pop("no_rope_layer_interval")
    turned = config.setdefault("no_rope_layers", [int((i + 1) % interval != 0) for i in range(layers)])
    if len(turned) != layers:
        raise source.error("no_rope_layers", f"names {len(turned)} layers; there are {layers}")
    if not config["use_sliding_window"]:
        config["sliding_window"] = None
    fill_layer_types(config, source, lambda layer: not turned[layer])


KEYS = ConfigKeys(
    used={
        **usual("hidden_act tie_word_embeddings attention_bias mlp_bias use_sliding_window sliding_window layer_types"),
        "no_rope_layers": _flags,
        "no_rope_layer_interval": integer(1, 1 << 16),
    },
    defaults={
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 2000000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "sliding_window": None,
    },
    nullable=("sliding_window",),
    neutral={"pretraining_tp": "the same products in slices; the sums round a little differently"},
    check=_check,
)
GGUF = GgufKeys("smollm3", "SmolLM3ForCausalLM")


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a smollm3 ``config`` describes."""
    names, turn = Names(config, pairs=True), rope(config)
    ropes = [turn if turned else None for turned in config["no_rope_layers"]]
    return names.model(lambda i: names.block(i, names.attention(i, rope=ropes[i]), names.gated_mlp(i)))
