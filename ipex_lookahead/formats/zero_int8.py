"""Eight bits with a zero point: w = scale * (code - zero), the arithmetic of GPTQ's checkpoints."""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.base import Stream
from ipex_lookahead.formats.zero_points import format_with_zeros

FORMAT = format_with_zeros("zero_int8", 8, Stream("codes", np.uint8, 32, 32, "U8", "code i of a block in byte i"))
