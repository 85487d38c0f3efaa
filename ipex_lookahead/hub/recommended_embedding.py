"""Recommended embedding and reranking models with short names, from ``recommended_embedding.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_yaml import load_yaml

FILE = Path(__file__).with_name("recommended_embedding.yaml")
_MIN_PREFIX = 6
"""Minimum number of characters of a name without its size, such as ``qwen3-embedding``."""


@dataclass(frozen=True, slots=True)
class RecommendedEmbedding:
    """A recommended embedding or reranking model; ``recommended_embedding.yaml`` documents the fields."""

    name: str
    model: str
    purpose: Literal["embedding", "reranking"]
    license: str
    parameters: int
    dimensions: int
    max_length: int
    download: int
    source: str
    drafter: None = None

    @property
    def size(self) -> str:
        """Size of the download, such as "90.9 MB", or "size not verified"."""
        return f"{self.download / 1e6:,.1f} MB" if self.download else "size not verified"


@cache
def recommended_embedding_models() -> Mapping[str, RecommendedEmbedding]:
    """Return the recommended embedding and reranking models by short name, from small to large."""
    found = load_yaml(FILE, error=InputError)
    return MappingProxyType({name: RecommendedEmbedding(name, **facts) for name, facts in found.items()})


def find_embedding(spelled: str) -> RecommendedEmbedding | None:
    """Return the model of a short name, or of the only one that begins with it; None if there is none.

    Args:
        spelled: lower case, with "-" between words.
    """
    known = recommended_embedding_models()
    if spelled in known:
        return known[spelled]
    begins = [model for name, model in known.items() if name.startswith(f"{spelled}-")]
    return begins[0] if len(begins) == 1 and len(spelled) >= _MIN_PREFIX else None


def purpose_of_name(name: str) -> str:
    """Return the purpose of a model that is named by its short name or as in the list; "" for any other name."""
    known = recommended_embedding_models()
    found = known.get(name.lower()) or next((one for one in known.values() if one.model == name), None)
    return "" if found is None else found.purpose
