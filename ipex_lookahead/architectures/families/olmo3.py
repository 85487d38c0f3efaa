"""OLMo 3: an OLMo 2 with a window on three layers of four, and stretched rope only on the fourth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.families import olmo2
from ipex_lookahead.architectures.hparams import SIZES, Source, shown
from ipex_lookahead.architectures.keys import LOCAL_THETA, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.rope import local_rope, rope
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.architectures.windows import fill_layer_types, gguf_layer_types, layer_types, window_of, window_size
from ipex_lookahead.errors import UnsupportedModelError

_THETA = 500000.0


def _check(config: dict[str, Any], source: Source) -> None:
    fill_layer_types(config, source, lambda layer: (layer + 1) % 4 != 0)
    theta = config["rope_theta"]
    if config.setdefault(LOCAL_THETA, _THETA if theta == _THETA else None) is None:
        raise UnsupportedModelError(
            f"{source.file}: rope_theta is {theta:g}, and nothing says what layers with a window have: {theta:g} in "
            f"transformers 4, {_THETA:g} in transformers 5",
            hint="give both in rope_parameters, as full_attention.rope_theta and sliding_attention.rope_theta",
        )


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    theta = config["rope_theta"]
    if (local := config.setdefault(LOCAL_THETA, theta)) != theta:
        raise UnsupportedModelError(
            f"{file.path}: olmo2.rope.freq_base_swa is {shown(local)}, not the freq_base {theta:g}; llama.cpp turns all"
            " layers by the latter, and its cache by the former"
        )
    gguf_layer_types(file, config, "olmo2", every=4)


KEYS = replace(
    olmo2.KEYS,
    used={
        **olmo2.KEYS.used,
        "sliding_window": window_size,
        "layer_types": layer_types,
        LOCAL_THETA: SIZES["rope_theta"],
    },
    defaults={**olmo2.KEYS.defaults, "rope_theta": _THETA, "sliding_window": 4096},
    flat_rope=True,
    nullable=("sliding_window",),
    refused={},
    check=_check,
)
GGUF = GgufKeys(
    "olmo2",
    "Olmo3ForCausalLM",
    used={
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        LOCAL_THETA: "rope.freq_base_swa",
        # The converter writes Hugging Face's attention_factor, which llama.cpp computes again to the same end.
        "rope_scaling.attention_factor": "rope.scaling.yarn_attn_factor",
    },
    constants={"attention_bias": False},
    complete=_complete,
    claims=olmo2.has_windows,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that an olmo3 ``config`` describes."""
    names, far, near = Names(config), rope(config), local_rope(config, config[LOCAL_THETA])
    return names.model(lambda i: olmo2.block(names, i, far if window_of(config, i) is None else near))
