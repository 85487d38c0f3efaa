"""``nf4`` as bitsandbytes has it: a float32 scale for 64 inputs; w = scale * table[code]."""

from __future__ import annotations

from ipex_lookahead.formats.float_scales import float_scale_format
from ipex_lookahead.formats.nf4 import TABLE

FORMAT = float_scale_format("bnb_nf4", 4, TABLE)
