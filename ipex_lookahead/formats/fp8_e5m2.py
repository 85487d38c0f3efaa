"""Eight-bit floats (e5m2) with a binary16 scale for 32 inputs: w = scale * float, numbers up to 57344.

``scale * float`` is exact in float32. The largest value of a block becomes 14, so that the scale is seldom a subnormal.
The codes of infinity and NaN are never made.
"""

from __future__ import annotations

from ipex_lookahead.formats.codebooks import BYTES, minifloats, table_format

TABLE = minifloats(5, 2)

FORMAT = table_format("fp8_e5m2", TABLE, 14.0, BYTES)
