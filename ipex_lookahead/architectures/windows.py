"""Sliding windows: ``layer_types`` and ``sliding_window`` of transformers' configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ipex_lookahead.architectures.hparams import (
    MAX_CONTEXT,
    MAX_LAYERS,
    Source,
    check_one_per_layer,
    integer,
    list_of,
    optional,
)
from ipex_lookahead.architectures.keys import GgufSource
from ipex_lookahead.files.refusal import Refusal

FULL, SLIDING = "full_attention", "sliding_attention"
layer_types = list_of(FULL, SLIDING)

window_size = optional(integer(1, MAX_CONTEXT))
"""Check for ``sliding_window``: a number of positions including the present one, or null for no window."""


def window_pattern(source: Source, key: str, value: Any) -> Any:
    """Check for ``sliding_window_pattern``, a number; lists in GGUF files are checked by ``gguf_layer_types``."""
    return value if isinstance(value, np.ndarray) else integer(1, MAX_LAYERS)(source, key, value)


def one_kind_of_layer(family: str) -> dict[str, Refusal]:
    """Return the refused keys of a family for which transformers ignores ``layer_types``."""
    reason = f"selects layers of several kinds, which transformers' {family} ignores"
    return {"layer_types": Refusal(reason, unless=(None,))}


def no_window(family: str) -> dict[str, Refusal]:
    """Return the refused keys of a family for which transformers ignores layer types and windows."""
    reason = f"limits the attention window, which transformers' {family} ignores"
    return {**one_kind_of_layer(family), "sliding_window": Refusal(reason, unless=(None,))}


def fill_layer_types(config: dict[str, Any], source: Source, slides: Callable[[int], bool]) -> None:
    """Fill in missing ``layer_types``: layer i has a window if ``slides(i)`` and the config has a window.

    Raises:
        ModelFormatError: if the list has a wrong length, or has windows without a window size.
    """
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if config.get("layer_types") is None:
        config["layer_types"] = [SLIDING if window is not None and slides(i) else FULL for i in range(layers)]
    check_one_per_layer(config, source, "layer_types")
    if SLIDING in config["layer_types"] and window is None:
        raise source.error("layer_types", f"contains {SLIDING}, but there is no sliding_window")


def gguf_layer_types(file: GgufSource, config: dict[str, Any], architecture: str, *, every: int) -> None:
    """Fill in ``layer_types`` as llama.cpp does, replacing ``sliding_window_pattern``.

    The pattern is a number n (each nth layer has full attention, none if 0) or a list of bools, true for a window.

    Args:
        file: the file.
        config: the config, modified in place.
        architecture: prefix of the file's keys.
        every: default of the pattern.

    Raises:
        ModelFormatError: if the pattern is invalid or the list has a wrong length.
    """
    key, layers = f"{architecture}.attention.sliding_window_pattern", config["num_hidden_layers"]
    pattern, window = config.pop("sliding_window_pattern", every), config["sliding_window"]
    if isinstance(pattern, np.ndarray) and pattern.dtype.kind in "biu" and ((pattern == 0) | (pattern == 1)).all():
        slides = [bool(one) for one in pattern]
    else:
        every = integer(0, MAX_LAYERS)(Source.at(file.path, {key: (key, file.offsets.get(key))}), key, pattern)
        slides = [every == 0 or i % every < every - 1 for i in range(layers)]
    if len(slides) != layers:
        raise file.error(key, file.offsets.get(key), f"has {len(slides)} values for {layers} layers")
    config["layer_types"] = [SLIDING if one and window is not None else FULL for one in slides]


def window_of(config: Mapping[str, Any], layer: int) -> int | None:
    """Return the window of a layer; None: unlimited."""
    types = config.get("layer_types")
    return config.get("sliding_window") if types is None or types[layer] == SLIDING else None
