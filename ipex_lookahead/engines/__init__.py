"""Where models run. A new device is a new file and a line in ``ENGINES``."""

from __future__ import annotations

from ipex_lookahead.engines.base import Batch, Cache, Engine, StepOutput
from ipex_lookahead.engines.native import NativeEngine

__all__ = ["ENGINES", "Batch", "Cache", "Engine", "NativeEngine", "StepOutput"]

ENGINES = {"native": NativeEngine}
"""Name to what loads it."""
