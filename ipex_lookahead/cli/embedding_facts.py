"""What a model is for, and facts of embedding and reranking models from their headers."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from ipex_lookahead.checkpoints import kind_of
from ipex_lookahead.checkpoints.encoders import is_encoder, open_encoder
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.checkpoints.low_bit import packed_bytes
from ipex_lookahead.cli.names import in_options
from ipex_lookahead.embedding.purpose import purpose_of
from ipex_lookahead.embedding.settings import Settings, folder_settings, gguf_settings
from ipex_lookahead.errors import LookaheadError, UnsupportedModelError


def with_purpose(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a model with ``purpose``, and those of an embedding or reranking model.

    Args:
        path: the folder or file.
        found: facts of the model as a text model; an encoder is described anew.
    """
    try:
        purpose = purpose_of(path)
    except LookaheadError:  # other facts name the problem
        purpose = "text"
    if purpose == "text":
        return {**found, "purpose": purpose}
    try:
        encoder = _encoder(path, found) if is_encoder(path) else found
        return {**encoder, "purpose": purpose, **_settings(path)}
    except LookaheadError as error:
        problem, hint = in_options(error)
        return {**found, "purpose": purpose, "engine": None, "config": None, "problem": problem, "hint": hint}


def _encoder(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of an encoder, which has neither a chat template nor a KV cache."""
    left = {name: value for name, value in found.items() if name not in ("problem", "hint")}
    try:
        checkpoint = open_encoder(path)
    except UnsupportedModelError as error:
        problem, hint = in_options(error)
        return {**left, "engine": None, "config": None, "problem": problem, "hint": hint}
    try:
        formats: dict[str, dict[str, int]] = {}
        parameters = 0
        for name in checkpoint.names():
            info = checkpoint.info(name)
            entry = formats.setdefault(info.format, {"tensors": 0, "bytes": 0})
            entry["tensors"] += 1
            entry["bytes"] += packed_bytes(info)
            parameters += prod(info.shape)
        total = sum(entry["bytes"] for entry in formats.values())
        own = {"engine": "native", "config": None, "parameters": parameters, "bytes": total, "formats": formats}
        return {**left, **own}
    finally:
        checkpoint.close()


def _settings(path: Path) -> dict[str, Any]:
    """Return pooling, dimensions of the dense layers or a cut, and the prompts that the files state."""
    kind, where = kind_of(path)
    settings: Settings | None
    if kind == "gguf":
        file = GgufParts(where)
        try:
            offsets = file.offsets
            settings = gguf_settings(file.metadata, lambda key, problem: file.error(key, offsets.get(key), problem))
        finally:
            file.close()
    else:
        settings = folder_settings(where)
    if settings is None:
        return {}
    found: dict[str, Any] = {"pooling": "+".join(settings.modes)} if settings.modes else {}
    found |= {"dimensions": settings.dimensions} if settings.dimensions else {}
    found |= {"max_length": settings.max_length} if settings.max_length else {}
    return found | ({"prompts": sorted(settings.prompts)} if settings.prompts else {})
