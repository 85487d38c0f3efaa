"""Model architectures: the families (``families/``), and their common code and vocabulary."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from os import PathLike
from typing import Any, cast

from ipex_lookahead.architectures import families
from ipex_lookahead.architectures.images import with_images
from ipex_lookahead.architectures.keys import Family, GgufSource
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.architectures.text_encoder import TextEncoder
from ipex_lookahead.errors import InputError, UnsupportedModelError, arg

__all__ = [
    "ENCODERS", "HEADS", "ModelSpec", "TextEncoder", "encoder_families", "encoder_type", "family", "gguf_architectures",
    "gguf_encoder", "gguf_family", "model_types", "spec_for",
]  # fmt: skip

HEADS = frozenset({"gemma4_assistant", "gemma4_unified_assistant"})
"""Families of drafting heads, which cannot generate text on their own."""

ENCODERS = frozenset(
    "albert bert camembert deberta deberta-v2 distilbert electra ernie mobilebert modernbert mpnet nomic_bert roberta"
    " xlm-roberta xlm-roberta-xl".split()
)
"""Model types of encoders, which turn a text into vectors and generate none."""
_GGUF_ENCODERS = frozenset(
    "bert eurobert jina-bert-v2 jina-bert-v3 modern-bert neo-bert nomic-bert nomic-bert-moe t5encoder".split()
)
"""Their values of ``general.architecture``."""


def encoder_families() -> Mapping[str, TextEncoder]:
    """Return the supported families of text encoders by name: their ``model_type``, or a name of its own."""
    return families.encoders()


def encoder_type(config: Mapping[str, Any]) -> str | None:
    """Return the family of text encoders of a ``config.json``; None for other models.

    EmbeddingGemma has the ``model_type`` of a decoder, and a key that lets all tokens see each other. Jina's BERTs have
    that of BERT, and another kind of positions.
    """
    kind, both_ways = config.get("model_type"), config.get("use_bidirectional_attention")
    if kind == "gemma3_text":
        return "gemma_embedding" if both_ways else None
    if kind == "bert" and config.get("position_embedding_type") == "alibi":
        return "jina_bert"
    return kind if isinstance(kind, str) and kind in encoder_families() else None


def gguf_encoder(architecture: object) -> str | None:
    """Return the family of text encoders with this ``general.architecture``; None for other models."""
    for name, one in encoder_families().items():
        if one.GGUF is not None and architecture in one.GGUF.architectures:
            return name
    return None


def refuse_encoder(path: str | PathLike[str], kind: object) -> None:
    """Raise UnsupportedModelError if a model type, or a GGUF file's architecture, is an encoder's."""
    if kind in ENCODERS or kind in _GGUF_ENCODERS or gguf_encoder(kind) is not None:
        runs = kind in encoder_families() or gguf_encoder(kind) is not None
        known = ", ".join(sorted(encoder_families()))
        raise UnsupportedModelError(
            f"{path}: {kind} is an encoder: it computes embeddings and generates no text"
            + ("" if runs else f"; it is not one of the supported encoders {known}"),
            hint="to generate text, choose another model: `ipex-lookahead pull` lists recommended ones"
            + (f"; for embeddings, use {arg('LLM(path).embed(texts)')}" if runs else ""),
        )


@functools.cache
def model_types() -> list[str]:
    """Return the supported families."""
    return sorted(families.names() - HEADS)


def family(model_type: object, *, file: str = "") -> Family:
    """Return the family for a model's or head's ``model_type``.

    Raises:
        UnsupportedModelError: if the type is not supported; names ``file``.
    """
    if model_type not in model_types() and model_type not in HEADS:
        raise UnsupportedModelError(
            f"{file}{': ' if file else ''}model type {model_type!r} is not supported; supported are "
            f"{', '.join(model_types())}",
            hint=f"use {arg('engine', 'torch')}, which runs all models that transformers supports, or add"
            " it to ipex_lookahead/architectures/families (see docs/adding_a_model.md)",
        )
    return families.find(str(model_type))


@functools.cache
def gguf_architectures() -> tuple[str, ...]:
    """Return the supported values of ``general.architecture``."""
    declared = [family(one).GGUF for one in (*model_types(), *HEADS)]
    return tuple(sorted({name for keys in declared if keys is not None for name in keys.architectures}))


def gguf_family(file: GgufSource, architecture: str) -> str | None:
    """Return the ``model_type`` of a GGUF file, or None if its architecture is not supported."""
    for model_type in (*model_types(), *HEADS):
        keys = family(model_type).GGUF
        if keys is not None and architecture in keys.architectures and keys.claims(file):
            return model_type
    return None


def spec_for(config: dict[str, Any], max_context: int | None = None, *, file: str | PathLike[str] = "") -> ModelSpec:
    """Return the spec of the model that a checked config describes.

    Args:
        config: result of ``checked_config``, with Hugging Face's keys.
        max_context: maximum number of positions per sequence. None: the model's maximum, or with two sets of rope
            frequencies (longrope) the original context, for which the short set is made.
        file: the checkpoint, for errors.

    Raises:
        UnsupportedModelError: if the family, a layer type or a rope type is not supported.
        InputError: if ``max_context`` exceeds the model's maximum.
    """
    scaling, most = config.get("rope_scaling") or {}, config.get("max_position_embeddings", 0)
    if max_context is None:
        max_context = min(most, scaling["original_max_position_embeddings"]) if "long_factor" in scaling else most
    elif not 1 <= max_context <= most:
        raise InputError(f"max_context is {max_context}; this model has 1 to {most} positions")
    known = family(config.get("model_type"))
    try:
        found = cast(ModelSpec, known.spec({**config, "max_position_embeddings": max_context}))
        return with_images(found, config)
    except UnsupportedModelError as error:
        if not file or str(file) in str(error):
            raise
        raise UnsupportedModelError(f"{file}: {error}", hint=error.hint) from None
