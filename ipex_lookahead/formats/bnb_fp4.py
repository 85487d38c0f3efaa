"""bitsandbytes' own floats of four bits, with a float32 scale for 64 inputs: w = scale * table[code]."""

from __future__ import annotations

from ipex_lookahead.formats.float_scales import float_scale_format

_MAGNITUDES = (0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)

FORMAT = float_scale_format("bnb_fp4", 4, (*_MAGNITUDES, *(-number for number in _MAGNITUDES)))
