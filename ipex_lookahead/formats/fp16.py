"""IEEE binary16: 11 bits of precision, at most 65504."""

from __future__ import annotations

from ipex_lookahead.formats.float_base import FloatFormat

FORMAT = FloatFormat("fp16", 16, "F16", 1, "IEEE binary16 bit patterns")
