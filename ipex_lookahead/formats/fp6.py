"""Six-bit floats (e3m2) with a binary16 scale for 32 inputs: w = scale * float, numbers from 2^-16 to 28 / 4096.

The exponent has binary16's bias, as in ipex-llm: the scale of usual weights is about 1 and no subnormal, and weights
may be up to 447.
"""

from __future__ import annotations

from ipex_lookahead.formats.blocks import Plane
from ipex_lookahead.formats.codebooks import NIBBLES, minifloats, table_format

TABLE = minifloats(3, 2, bias=15)

FORMAT = table_format("fp6", TABLE, TABLE[31], NIBBLES, Plane("upper", 2, 8, up=4))
