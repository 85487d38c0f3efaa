"""Eight-bit floats (e4m3) with a binary16 scale for 32 inputs: w = scale * float, numbers up to 448.

``scale * float`` is exact in float32. The largest value of a block becomes 28, so that the scale is seldom a subnormal;
what is below 2^-11 of it is a subnormal then. The code of NaN is never made.
"""

from __future__ import annotations

from ipex_lookahead.formats.codebooks import BYTES, minifloats, table_format

TABLE = minifloats(4, 3)

FORMAT = table_format("fp8_e4m3", TABLE, 28.0, BYTES)
