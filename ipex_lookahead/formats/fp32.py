"""IEEE binary32, as most checkpoints were trained."""

from __future__ import annotations

from ipex_lookahead.formats.float_base import FloatFormat

FORMAT = FloatFormat("fp32", 32, "F32", 0, "the value")
