"""How the text parts of multimodal models take images: placeholders, spans, and positions of three parts (M-RoPE)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ipex_lookahead.architectures.hparams import Check, Source, integer, shown
from ipex_lookahead.architectures.keys import ConfigKeys
from ipex_lookahead.architectures.spec import Attention, Block, ImageInputs, ModelSpec, Rope
from ipex_lookahead.errors import UnsupportedModelError

SECTIONS = "mrope_section"
"""Key of the rope object: numbers of pairs that turn by time, row and column."""
VISION = "vision_config"
_TOKENS = ("image_token_id", "image_token_index")
_BOTH_WAYS = "use_bidirectional_attention"
_ALL_LAYERS = ("gemma3_text",)
"""Families with spans in layers of both kinds, whatever the config has."""
_INTERLEAVED = ("qwen3", "qwen3_moe", "qwen3_5_text", "qwen3_5_moe_text")
"""Families with the three sections interleaved; those of the others are consecutive."""


def both_ways(source: Source, key: str, value: Any) -> str:
    """Check ``use_bidirectional_attention``: only rows of images may see later ones."""
    if value != "vision":
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling(key)} is {shown(value)}, which lets tokens attend to later ones; it must"
            ' be null or "vision", or absent'
        )
    return "vision"


def sections(source: Source, key: str, value: Any) -> list[int]:
    """Check ``SECTIONS``; GGUF files have a fourth number, 0."""
    found = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(found, list) and found[3:] == [0]:
        found = found[:3]
    if not isinstance(found, list) or len(found) != 3:
        raise source.error(key, f"is {shown(value)}; it must be a list of three numbers")
    return [integer(0, 1 << 16)(source, key, one) for one in found]


def _vision(source: Source, key: str, value: Any) -> dict[str, int]:
    """Return what the text part needs of the vision part: the number of layers with deepstack features.

    GGUF files have the number itself.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return {"deepstack": integer(0, 1 << 16)(source, key, value)}
    if not isinstance(value, dict):
        raise source.error(key, f"is {shown(value)}; it must be an object")
    indexes = value.get("deepstack_visual_indexes")
    found = len(indexes) if isinstance(indexes, list) else value.get("deepstack", 0)
    return {"deepstack": integer(0, 1 << 16)(source, key, found)}


def taking_images(
    part: ConfigKeys, token: int, *, turns: list[int] | None = None, deepstack: bool = False, key: str = _TOKENS[0]
) -> ConfigKeys:
    """Return the keys of a text part that takes images, inside of a whole config with ``outer=OUTER``.

    Args:
        part: the text part's keys.
        token: the default of ``key``.
        turns: the default of ``SECTIONS``; None: positions have one part.
        deepstack: whether the vision part may have deepstack features.
        key: key of the whole config for the placeholder's id.
    """
    used: dict[str, Any] = {**part.used, key: CHECKS[key]}
    defaults: dict[str, Any] = {**part.defaults, key: token}
    if turns is not None:
        used[SECTIONS], defaults[SECTIONS] = sections, turns
    if deepstack:
        used[VISION] = _vision
    return replace(part, used=used, defaults=defaults)


CHECKS: Mapping[str, Check] = {**dict.fromkeys(_TOKENS, integer(0, 1 << 27)), SECTIONS: sections, VISION: _vision}
"""The keys of a text part that takes images, as checked configs have them, which are saved with any family."""
OUTER = (*_TOKENS, VISION)
"""Keys of a whole config that its text part uses."""


def with_images(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    """Return the spec with ``images``, spans and axes where the checked config describes a text part that takes images.

    Raises UnsupportedModelError if the sections of its positions do not fit its rope.
    """
    token = next((config[key] for key in _TOKENS if config.get(key) is not None), None)
    if token is None or token >= spec.vocab:
        return spec
    everywhere = spec.model_type in _ALL_LAYERS
    parts = config.get(SECTIONS)
    ropes: dict[int, Rope] = {}

    def turned(rope: Rope | None) -> Rope | None:
        if rope is None or parts is None:
            return rope
        if id(rope) not in ropes:
            axes = _axes(parts, len(rope.frequencies), interleaved=spec.model_type in _INTERLEAVED)
            ropes[id(rope)] = replace(rope, axes=axes)
        return ropes[id(rope)]

    def block(one: Block) -> Block:
        if not isinstance(one.mixer, Attention):
            return one
        spans = everywhere or (config.get(_BOTH_WAYS) == "vision" and one.mixer.window is not None)
        return replace(one, mixer=replace(one.mixer, rope=turned(one.mixer.rope), spans=spans))

    mtp = None if spec.mtp is None else replace(spec.mtp, layers=tuple(map(_unspanned(block), spec.mtp.layers)))
    deepstack = config.get(VISION, {}).get("deepstack", 0)
    if deepstack > len(spec.layers):
        raise UnsupportedModelError(f"there are deepstack features for {deepstack} of {len(spec.layers)} layers")
    images = ImageInputs(token, spec.hidden, config.get("pad_token_id") or 0, parts is not None, deepstack)
    return replace(spec, layers=tuple(map(block, spec.layers)), images=images, mtp=mtp)


def _unspanned(block: Any) -> Any:
    """Return the function for blocks of drafting heads, which read rows one by one."""

    def one(of: Block) -> Block:
        made: Block = block(of)
        return replace(made, mixer=replace(made.mixer, spans=False)) if isinstance(made.mixer, Attention) else made

    return one


def _axes(sections: list[int], pairs: int, *, interleaved: bool) -> tuple[int, ...]:
    """Return for each pair which position it turns by: 0 time, 1 row, 2 column."""
    if interleaved:
        return tuple(pair % 3 if pair < 3 * sections[pair % 3] else 0 for pair in range(pairs))
    if sum(sections) != pairs:
        raise UnsupportedModelError(f"{SECTIONS} is {sections}; its sum must be the {pairs} rotated pairs of a head")
    return tuple(axis for axis, count in enumerate(sections) for _ in range(count))
