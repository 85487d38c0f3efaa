"""Llama models in low-bit formats on CPUs, with lookahead decoding that never changes the output."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.errors import (
    BusyError,
    CacheFileError,
    ContextLengthError,
    DownloadError,
    EngineError,
    InputError,
    LookaheadError,
    LowBitFormatError,
    MissingPackageError,
    MissingWeightError,
    ModelFormatError,
    NonFiniteError,
    OutOfMemoryError,
    QueueFullError,
    SaveError,
    ServiceError,
    UnsupportedModelError,
)
from ipex_lookahead.hf.ipex_llm_names.absent import refuse_name
from ipex_lookahead.hf.lookahead_decoding import LookaheadDecoding
from ipex_lookahead.system.extras import need_torch

if TYPE_CHECKING:
    from ipex_lookahead.hf.auto import AutoModelForCausalLM, AutoModelForImageTextToText
    from ipex_lookahead.hf.embedding import AutoModelForEmbedding
    from ipex_lookahead.hf.optimize import optimize_model
    from ipex_lookahead.hf.wrapping import wrap
    from ipex_lookahead.llm import LLM

__version__ = "0.3.0.dev0"

__all__ = [
    "LLM",
    "AutoModelForCausalLM",
    "AutoModelForEmbedding",
    "AutoModelForImageTextToText",
    "BusyError",
    "CacheFileError",
    "ContextLengthError",
    "DownloadError",
    "EngineError",
    "InputError",
    "LookaheadConfig",
    "LookaheadDecoding",
    "LookaheadError",
    "LowBitFormatError",
    "MissingPackageError",
    "MissingWeightError",
    "ModelFormatError",
    "NonFiniteError",
    "OutOfMemoryError",
    "QueueFullError",
    "SaveError",
    "ServiceError",
    "UnsupportedModelError",
    "__version__",
    "optimize_model",
    "wrap",
]


_NEED_TORCH = {
    "AutoModelForCausalLM": "hf.auto",
    "AutoModelForImageTextToText": "hf.auto",
    "optimize_model": "hf.optimize",
    "wrap": "hf.wrapping",
}


def __getattr__(name: str) -> Any:
    """Import large modules, and those that need torch, on first use: the command starts quickly and without torch."""
    if name == "LLM":
        return import_module(f"{__name__}.llm").LLM
    if name == "AutoModelForEmbedding":
        return import_module(f"{__name__}.hf.embedding").AutoModelForEmbedding
    if name in _NEED_TORCH:
        need_torch(f"ipex_lookahead.{name}")
        return getattr(import_module(f"{__name__}.{_NEED_TORCH[name]}"), name)
    refuse_name(__name__, name)


def __dir__() -> list[str]:
    """The public names, those that are imported late included."""
    return sorted(__all__)
