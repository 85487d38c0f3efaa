"""ipex-llm's module of this name: ``from ipex_lookahead.optimize import optimize_model, low_memory_init``."""

from __future__ import annotations

from ipex_lookahead.hf.optimize import *  # noqa: F403
