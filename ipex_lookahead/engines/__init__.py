"""Engines, which run models. A new engine is a new folder and a line in ``ENGINES``."""

from __future__ import annotations

from ipex_lookahead.engines.api import Batch, Cache, Engine, StepOutput
from ipex_lookahead.engines.native.engine import NativeEngine

__all__ = ["ENGINES", "Batch", "Cache", "Engine", "NativeEngine", "StepOutput"]

ENGINES = {
    "native": "ipex_lookahead.engines.native.load",
    "torch": "ipex_lookahead.engines.torch.load",
    "ipex-llm": "ipex_lookahead.engines.ipex_llm.engine",
    "opencl": "ipex_lookahead.engines.opencl.load",
}
"""Name -> the module with the engine's ``load(LoadRequest) -> LoadedModel``, imported on first use."""
