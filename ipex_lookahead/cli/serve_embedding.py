"""Embedding and reranking models of ``serve``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.progress import byte_bar
from ipex_lookahead.errors import LookaheadError

if TYPE_CHECKING:
    from ipex_lookahead.engines.load_weights import Progress
    from ipex_lookahead.serving.server import Server

_OF_TEXT = {"draft_model": "--draft-model", "drafter": "--drafter", "lora": "--lora"}
"""Options that a server of an embedding model refuses."""


def purpose_of_source(source: str) -> str:
    """Return what a model is for: "text", "embedding", "reranking", or "" for one that has to be downloaded first."""
    from ipex_lookahead.embedding.purpose import purpose_of
    from ipex_lookahead.hub import parse_name
    from ipex_lookahead.hub.recommended import Recommended, find_recommended
    from ipex_lookahead.hub.recommended_embedding import purpose_of_name

    found = parse_name(source)
    if found is None:
        return "text"
    if isinstance(found, Path):
        try:
            return purpose_of(found)
        except LookaheadError:  # loading reports it
            return "text"
    if named := purpose_of_name(source):
        return named
    short = None if "/" in source else find_recommended(source)
    return "text" if short is not None and isinstance(short.model, Recommended) else ""


def is_for_text(name: str, *, progress: bool) -> bool:
    """Return True for a model that generates text, which is downloaded if its purpose is not known otherwise."""
    from ipex_lookahead.embedding.purpose import purpose_of
    from ipex_lookahead.hub import resolve_model

    return (purpose_of_source(name) or purpose_of(resolve_model(name, progress=progress))) == "text"


def load_embedder(
    server: Server,
    name: str,
    settings: Mapping[str, Any],
    capacity: Mapping[str, Any],
    *,
    max_length: int | None,
    progress: bool | Progress,
    tell: Callable[[str], None],
    strict: bool,
) -> None:
    """Load an embedding or reranking model into a server.

    Args:
        server: the server.
        name: the model.
        settings: values of the options of the model.
        capacity: values of the options of ``Capacity``.
        max_length: maximum number of tokens of a text; None: the model's.
        progress: whether a bar is shown, or what reports the progress.
        tell: prints a line.
        strict: whether options for text models are refused; the workers of several models have those of all models.

    Raises UsageError and LookaheadError.
    """
    from ipex_lookahead.embedding.model import EmbeddingModel
    from ipex_lookahead.serving.embedding.batcher import Batcher
    from ipex_lookahead.serving.embedding.embedder import Embedder

    given = [flag for option, flag in _OF_TEXT.items() if settings.get(option)]
    if strict and given:
        raise click.UsageError(f"{given[0]} is for text models, and {name} is none; leave it out")
    if settings.get("engine", "auto") not in ("auto", "native") or settings.get("device") not in (None, "cpu"):
        tell(f"note: {name} runs on the CPU, with the native engine")
    arguments: dict[str, Any] = {
        "load_in_low_bit": settings.get("low_bit"),
        "threads": settings.get("threads"),
        "max_length": max_length,
    }
    if progress is True:
        with byte_bar(f"loading {name}") as draw:
            model = EmbeddingModel.open(name, progress=lambda done, total, _: draw(done, total), **arguments)
    else:
        model = EmbeddingModel.open(name, progress=progress or None, **arguments)
    limits = {limit: capacity[limit] for limit in ("slots", "queue", "running_per_key", "queued_per_key")}
    server.ready_to_embed(Embedder(model, lambda one: Batcher(one, **limits)))
    paths = "/v1/embeddings" if model.purpose == "embedding" else "/v1/rerank"
    tell(f"{name} is for {model.purpose}: POST {paths}")
