"""What models are: their families (``families/``), and the code and the words that families share."""

from __future__ import annotations

import functools
from os import PathLike
from typing import Any, cast

from ipex_lookahead.architectures import families
from ipex_lookahead.architectures.keys import Family, GgufSource
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.errors import InputError, UnsupportedModelError, arg

__all__ = ["HEADS", "ModelSpec", "family", "gguf_architectures", "gguf_family", "model_types", "spec_for"]

HEADS = frozenset({"gemma4_assistant"})
"""Families that draft for others, and answer nothing by themselves."""


@functools.cache
def model_types() -> list[str]:
    """The families this package knows."""
    return sorted(families.names() - HEADS)


def family(model_type: object, *, file: str = "") -> Family:
    """The family of that ``model_type``, a model's or a head's.

    Raises UnsupportedModelError, which names ``file``, for one not known.
    """
    if model_type not in model_types() and model_type not in HEADS:
        raise UnsupportedModelError(
            f"{file}{': ' if file else ''}model type {model_type!r} is not supported; supported are "
            f"{', '.join(model_types())}",
            hint=f"use {arg('engine', 'torch')}, which runs what transformers knows, or add"
            " it to ipex_lookahead/architectures/families (see docs/adding_a_model.md)",
        )
    return families.find(str(model_type))


@functools.cache
def gguf_architectures() -> tuple[str, ...]:
    """The values of ``general.architecture`` that are known."""
    declared = [family(one).GGUF for one in (*model_types(), *HEADS)]
    return tuple(sorted({name for keys in declared if keys is not None for name in keys.architectures}))


def gguf_family(file: GgufSource, architecture: str) -> str | None:
    """The ``model_type`` of a GGUF file, None for an architecture that is not known."""
    for model_type in (*model_types(), *HEADS):
        keys = family(model_type).GGUF
        if keys is not None and architecture in keys.architectures and keys.claims(file):
            return model_type
    return None


def spec_for(config: dict[str, Any], max_context: int | None = None, *, file: str | PathLike[str] = "") -> ModelSpec:
    """What ``config`` (Hugging Face's names, checked) describes.

    Args:
        config: as ``checked_config`` gives it.
        max_context: positions that a sequence may have, at most the model's. None: the model's, or with two sets of
            rope frequencies (longrope) the original ones, for which the short set is made.
        file: the checkpoint, which errors name.

    Raises:
        UnsupportedModelError: an unknown family, or a kind of layer or rope that is not supported.
        InputError: more positions than the model has.
    """
    scaling, most = config.get("rope_scaling") or {}, config.get("max_position_embeddings", 0)
    if max_context is None:
        max_context = min(most, scaling["original_max_position_embeddings"]) if "long_factor" in scaling else most
    elif not 1 <= max_context <= most:
        raise InputError(f"max_context is {max_context}; this model has 1 to {most} positions")
    known = family(config.get("model_type"))
    try:
        return cast(ModelSpec, known.spec({**config, "max_position_embeddings": max_context}))
    except UnsupportedModelError as error:
        if not file or str(file) in str(error):
            raise
        raise UnsupportedModelError(f"{file}: {error}", hint=error.hint) from None
