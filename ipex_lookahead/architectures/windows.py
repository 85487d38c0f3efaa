"""Which layers look back only so far: ``layer_types`` and ``sliding_window``, as transformers' configs have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ipex_lookahead.architectures.hparams import MAX_CONTEXT, MAX_LAYERS, Source, integer, optional, shown
from ipex_lookahead.architectures.keys import GgufSource
from ipex_lookahead.files.refusal import Refusal

FULL, SLIDING = "full_attention", "sliding_attention"

window_size = optional(integer(1, MAX_CONTEXT))
"""A check for ``sliding_window``: a number of positions, the present one among them, or null for no window."""


def window_pattern(source: Source, key: str, value: Any) -> Any:
    """A check for ``sliding_window_pattern``, each nth layer sees all; a GGUF file's list is ``gguf_layer_types``'s."""
    return value if isinstance(value, np.ndarray) else integer(1, MAX_LAYERS)(source, key, value)


def one_kind_of_layer(family: str) -> dict[str, Refusal]:
    """What a family refuses whose class in transformers does not look at ``layer_types``."""
    reason = f"has layers of several kinds, which transformers' {family} passes over"
    return {"layer_types": Refusal(reason, unless=(None,))}


def no_window(family: str) -> dict[str, Refusal]:
    """What a family refuses whose class in transformers knows neither kinds of layers nor windows."""
    reason = f"limits how far attention reaches back, which transformers' {family} passes over"
    return {**one_kind_of_layer(family), "sliding_window": Refusal(reason, unless=(None,))}


def layer_types(source: Source, key: str, value: Any) -> list[str]:
    """A check for a list of the two kinds of layers."""
    if not isinstance(value, list) or not all(one in (FULL, SLIDING) for one in value):
        raise source.error(key, f"is {shown(value)}; it must be a list of {FULL} and {SLIDING}")
    return list(value)


def fill_layer_types(config: dict[str, Any], source: Source, slides: Callable[[int], bool]) -> None:
    """Give a config its ``layer_types`` where it has none: layer i has a window if ``slides(i)`` and there is one.

    Raises ModelFormatError where the list is not as long as there are layers, or asks for windows without a size.
    """
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if config.get("layer_types") is None:
        config["layer_types"] = [SLIDING if window is not None and slides(i) else FULL for i in range(layers)]
    types = config["layer_types"]
    if len(types) != layers:
        raise source.error("layer_types", f"names {len(types)} layers; there are {layers}")
    if SLIDING in types and window is None:
        raise source.error("layer_types", f"holds {SLIDING}, but there is no sliding_window")


def gguf_layer_types(file: GgufSource, config: dict[str, Any], architecture: str, *, every: int) -> None:
    """Give a config its ``layer_types`` as llama.cpp has them, in place of a ``sliding_window_pattern``.

    The pattern is a number n (``every`` where there is none): each nth layer sees all, and of 0 none does. Or it is a
    list of truth values, true for a window. Raises ModelFormatError for anything else, and for a list of another length
    than there are layers. Without a window there is no pattern either.
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
    """The window of a layer, None for all positions."""
    types = config.get("layer_types")
    return config.get("sliding_window") if types is None or types[layer] == SLIDING else None
