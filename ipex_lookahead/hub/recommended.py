"""Recommended models with short names such as ``qwen3-4b``, and their sizes, from ``recommended.yaml``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_yaml import load_yaml
from ipex_lookahead.hub.recommended_embedding import (
    RecommendedEmbedding,
    find_embedding,
    recommended_embedding_models,
)
from ipex_lookahead.system.cgroups import machine_memory

FILE = Path(__file__).with_name("recommended.yaml")
PROGRAM_BYTES = 300_000_000
"""Memory in addition to weights, keys and values (docs/which_model.md)."""
POSITIONS = 4096
"""Context length for which the required memory is given."""
MEMORY_SHARE = 0.7
"""Largest share of the machine's memory for a model that the program chooses."""
MAX_READ = 6_000_000_000
"""Largest number of bytes per token of the default size of a family: 7 tokens per second at 50 GB/s."""

_SIZE = re.compile(r"-e?[\d.]+[bm](-a[\d.]+b)?$")
_VERSION = re.compile(r"^([a-z]+)-(\d+(\.\d+)?)(?=-|$)")
_SUFFIX = re.compile(r"-(gguf|latest|it|instruct(-\d{4})?)$")


@dataclass(frozen=True, slots=True)
class Recommended:
    """A recommended model; ``recommended.yaml`` documents the fields. Sizes are in bytes."""

    name: str
    model: str
    family: str
    license: str
    parameters: int
    download: int
    read: int
    position: int
    source: str
    thinks: bool = False
    sees: bool = False
    draft: str | None = None
    drafter: str | None = None

    @property
    def bits(self) -> float:
        """Bits per weight in the file."""
        return 8 * self.download / self.parameters

    @property
    def memory(self) -> int:
        """Required memory in bytes with a context of ``POSITIONS``."""
        return self.download + POSITIONS * self.position + PROGRAM_BYTES

    @property
    def is_confirmed(self) -> bool:
        """Whether several independent lists state the file's name and size."""
        return self.source.startswith("confirmed by ")

    @property
    def series(self) -> str:
        """The short name without its size, such as ``qwen3.5``."""
        return _SIZE.sub("", self.name)

    @property
    def drafts(self) -> str:
        """The source of drafts: "MTP head", a short name of a draft model, or "n-grams"."""
        return "MTP head" if self.drafter else self.draft or "n-grams"


@dataclass(frozen=True, slots=True)
class Named:
    """The recommended model that a name refers to.

    Attributes:
        model: the model.
        said: a message about the choice; empty if the name is the model's own short name.
    """

    model: Recommended | RecommendedEmbedding
    said: str


@cache
def recommended_models() -> Mapping[str, Recommended]:
    """Return the recommended models by short name, from small to large."""
    found = load_yaml(FILE, error=InputError)
    return MappingProxyType({name: Recommended(name, **facts) for name, facts in found.items()})


def find_recommended(name: str) -> Named | None:
    """Return the recommended model for a name as people type it; None if there is none.

    Accepted are short names, names of repositories (``Qwen3.6-35B-A3B``, ``gemma-4-12b-it``), Ollama's
    ``name:tag``, and the name of a series alone (``qwen3.6``, ``granite4``). If several sizes match,
    :func:`default_size` chooses.
    """
    known = recommended_models()
    if (exact := known.get(name.lower())) is not None:
        return Named(exact, "")
    wanted = _spelled(name)
    spelled = {_spelled(model.name): model for model in known.values()}
    matches = [spelled[wanted]] if wanted in spelled else []
    matches = matches or [model for key, model in spelled.items() if key.startswith(f"{wanted}-")]
    if not matches and wanted[-1:].isdecimal():  # a version: "granite4" means granite4.1
        matches = [model for key, model in spelled.items() if key.startswith(f"{wanted}.")]
    if not matches and (embedding := find_embedding(wanted)) is not None:
        exact_name = embedding.name == name.lower()
        return Named(embedding, "" if exact_name else f"{name}: using {embedding.name} ({embedding.size})")
    if not matches or not wanted[-1:].isalnum():
        return None
    memory = machine_memory()
    chosen = default_size(matches, memory)
    said = f"{name}: using {chosen.name} ({chosen.download / 1e9:.1f} GB, license {chosen.license})"
    if chosen.memory > memory:
        said += f"; it needs {chosen.memory / 1e9:.1f} GB of memory, and this machine has {memory / 1e9:.1f} GB"
    if others := [model.name for model in matches if model is not chosen]:
        said += f"; other sizes: {', '.join(others)}"
    return Named(chosen, said)


def default_size(models: Sequence[Recommended], memory: int) -> Recommended:
    """Return the largest model that fits and reads at most ``MAX_READ`` bytes per token.

    Without one: the smallest that fits, or the smallest.

    Args:
        models: from small to large.
        memory: memory of the machine in bytes.
    """
    fit = [model for model in models if model.memory <= MEMORY_SHARE * memory]
    light = [model for model in fit if model.read <= MAX_READ]
    return (light[-1:] or fit[:1] or [*models])[0]


def near_names(name: str) -> list[str]:
    """Return short names or series that a name may mean, such as ``gemma3`` and ``gemma4`` for ``gemma``."""
    wanted = _spelled(name)
    series = sorted({model.series for model in recommended_models().values()})
    names = [*recommended_embedding_models()]
    starts = [one for one in series if wanted and one.startswith(wanted)]
    starts = starts or [one for one in names if wanted and one.startswith(wanted)]
    return starts or difflib.get_close_matches(wanted, [*recommended_models(), *series, *names], 1)


def _spelled(name: str) -> str:
    """Return a name in the spelling of short names: ``Gemma-4-12B-it`` and ``gemma4:12b`` become ``gemma4-12b``."""
    text = re.sub(r"[:_\s]", "-", name.lower())
    while (shorter := _SUFFIX.sub("", text)) != text:
        text = shorter
    return _VERSION.sub(r"\1\2", text)
