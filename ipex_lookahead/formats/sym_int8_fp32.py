"""Eight bits with a float32 scale for 64 inputs: w = scale * code, code -128..127.

ipex-llm's ``sym_int8``, and what LLM.int8() (arXiv 2208.07339) has in bitsandbytes' files.
"""

from __future__ import annotations

from ipex_lookahead.formats.float_scales import float_scale_format

FORMAT = float_scale_format("sym_int8_fp32", 8, (*range(128), *range(-128, 0)), 127.0, width=0.5, tries=3)
