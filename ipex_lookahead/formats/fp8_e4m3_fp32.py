"""Eight-bit floats (e4m3) with a float32 scale for 64 inputs, ipex-llm's ``fp8_e4m3``: w = scale * float.

The exponent has binary16's bias, so that a code is the upper byte of a binary16 without its top bit of exponent, and
numbers go up to 1.875.
"""

from __future__ import annotations

from ipex_lookahead.formats.codebooks import minifloats
from ipex_lookahead.formats.float_scales import float_scale_format

TABLE = minifloats(4, 3, bias=15)

FORMAT = float_scale_format("fp8_e4m3_fp32", 8, TABLE, TABLE[126], width=TABLE[126] / 60, tries=3)
