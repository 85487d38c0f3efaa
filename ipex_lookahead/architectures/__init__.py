"""Model families, one a file; the file's name is the ``model_type`` of config.json. A new family is a new file."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from ipex_lookahead.architectures.base import DecoderSpec
from ipex_lookahead.errors import UnsupportedModelError

__all__ = ["DecoderSpec", "model_types", "spec_for"]

_SUPPORT = {"base", "rope"}


def model_types() -> list[str]:
    """The families this package knows."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _SUPPORT)


def spec_for(config: dict[str, Any]) -> DecoderSpec:
    """What ``config`` (Hugging Face's names, checked) describes. Raises UnsupportedModelError for an unknown family."""
    model_type = config.get("model_type")
    if model_type not in model_types():
        raise UnsupportedModelError(
            f"model type {model_type!r} is not supported; supported are {', '.join(model_types())}",
            hint="use a checkpoint of the Llama family, or add ipex_lookahead/architectures/<model_type>.py",
        )
    spec: DecoderSpec = importlib.import_module(f"{__name__}.{model_type}").spec(config)
    return spec
