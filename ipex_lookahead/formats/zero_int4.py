"""Four bits with a zero point: w = scale * (code - zero), the arithmetic of GPTQ's and AWQ's checkpoints."""

from __future__ import annotations

from ipex_lookahead.formats.base import NIBBLES
from ipex_lookahead.formats.zero_points import format_with_zeros

FORMAT = format_with_zeros("zero_int4", 4, NIBBLES)
