"""What a model is for, from its files alone: text, vectors, or scores of documents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ipex_lookahead.architectures import encoder_type, gguf_encoder
from ipex_lookahead.checkpoints import kind_of
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.embedding.settings import MODULES, RANK, folder_settings, pooling_type
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.safe_json import read_file

Purpose = Literal["text", "embedding", "reranking"]
MAX_README = 4 << 20
_RANKING = re.compile(rb"^(pipeline_tag|task):\s*['\"]?text-ranking", re.MULTILINE)
_CLASSIFIER = "ForSequenceClassification"


def purpose_of(path: str | PathLike[str]) -> Purpose:
    """Return what a folder or a GGUF file is for.

    A folder is for reranking if its config names a classifier, if it has sentence-transformers' module LogitScore, or
    if its model card has the pipeline tag text-ranking. It is for embedding if it has other modules of
    sentence-transformers, or if it is an encoder. A GGUF file states its pooling.

    Raises as ``checkpoints.kind_of``; ModelFormatError for damaged files.
    """
    given = given_path(path)
    if (given / MODULES).is_file():  # the weights may be in a folder inside
        return _of_folder(given)
    kind, found = kind_of(given)
    if kind == "gguf":
        file = GgufParts(found)
        try:
            return _of_metadata(file.metadata, lambda key, problem: file.error(key, file.offsets.get(key), problem))
        finally:
            file.close()
    return _of_folder(found)


def _of_metadata(metadata: Mapping[str, Any], fail: Any) -> Purpose:
    pooling = pooling_type(metadata, fail)
    if pooling == RANK:
        return "reranking"
    encoder = gguf_encoder(metadata.get("general.architecture")) is not None
    return "embedding" if encoder or pooling else "text"


def _of_folder(folder: Path) -> Purpose:
    raw = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    names = raw.get("architectures")
    if isinstance(names, list) and any(isinstance(one, str) and one.endswith(_CLASSIFIER) for one in names):
        return "reranking"
    if (folder / MODULES).is_file():
        settings = folder_settings(folder)
        return "reranking" if settings is not None and settings.yes is not None else "embedding"
    if encoder_type(raw) is not None:
        return "embedding"
    return "reranking" if _card_ranks(folder) else "text"


def _card_ranks(folder: Path) -> bool:
    """Return True if the front matter of the model card has the pipeline tag of rerankers."""
    card = folder / "README.md"
    if not card.is_file():
        return False
    try:
        text = read_file(card, MAX_README)
    except ModelFormatError:  # a card is not part of the model
        return False
    head = text.split(b"\n---", 1)[0] if text.startswith(b"---") else b""
    return _RANKING.search(head) is not None
