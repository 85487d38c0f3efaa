"""Four-bit floats (e2m1) with a binary16 scale for 32 inputs: w = scale * table[code].

The numbers are ``mxfp4``'s, 0, 0.5, 1, 1.5, 2, 3, 4, 6; a scale of any size loses less than a power of two.
"""

from __future__ import annotations

from ipex_lookahead.formats.codebooks import NIBBLES, table_format
from ipex_lookahead.formats.mxfp4 import TABLE as DOUBLED

TABLE = tuple(number / 2 for number in DOUBLED)

FORMAT = table_format("fp4", TABLE, 6.0, NIBBLES, width=0.25, tries=7)
