"""bfloat16: the upper half of a float32, its range with 8 bits of precision."""

from __future__ import annotations

from ipex_lookahead.formats.float_base import FloatFormat

FORMAT = FloatFormat("bf16", 16, "BF16", 30, "the upper half of a float32")
