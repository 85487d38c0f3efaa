"""Model families, one a file; the file's name is the ``model_type`` of config.json. A new family is a new file."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any, cast

from ipex_lookahead.architectures.keys import Family, GgufSource
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.errors import UnsupportedModelError

__all__ = ["ModelSpec", "family", "gguf_architectures", "gguf_family", "model_types", "spec_for"]

_SUPPORT = {"hparams", "keys", "names", "rope", "spec"}


@functools.cache
def model_types() -> list[str]:
    """The families this package knows."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _SUPPORT)


def family(model_type: object) -> Family:
    """The family of that ``model_type``. Raises UnsupportedModelError for one that is not known."""
    if model_type not in model_types():
        raise UnsupportedModelError(
            f"model type {model_type!r} is not supported; supported are {', '.join(model_types())}",
            hint="use engine='torch', which runs what transformers knows, or add"
            " ipex_lookahead/architectures/<model_type>.py",
        )
    return cast(Family, importlib.import_module(f"{__name__}.{model_type}"))


@functools.cache
def gguf_architectures() -> tuple[str, ...]:
    """The values of ``general.architecture`` that are known."""
    return tuple(sorted({family(one).GGUF.architecture for one in model_types()}))


def gguf_family(file: GgufSource, architecture: str) -> str | None:
    """The ``model_type`` of a GGUF file, None for an architecture that is not known."""
    for model_type in model_types():
        keys = family(model_type).GGUF
        if keys.architecture == architecture and keys.claims(file):
            return model_type
    return None


def spec_for(config: dict[str, Any]) -> ModelSpec:
    """What ``config`` (Hugging Face's names, checked) describes. Raises UnsupportedModelError for an unknown family."""
    return cast(ModelSpec, family(config.get("model_type")).spec(config))
