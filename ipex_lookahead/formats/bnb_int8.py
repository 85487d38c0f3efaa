"""Eight bits with a float32 scale: w = scale * code, code -128..127 (LLM.int8(), arXiv 2208.07339, in bitsandbytes)."""

from __future__ import annotations

from ipex_lookahead.formats.float_scales import float_scale_format

FORMAT = float_scale_format("bnb_int8", 8, (*range(128), *range(-128, 0)), 127.0)
