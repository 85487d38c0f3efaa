"""The names of the low-bit formats, without their rooms' imports: ``--help`` and completion must not wait for numpy.

``NAME`` is the file ``formats/NAME.py``; nothing else lists formats.
"""

from __future__ import annotations

LOW_BITS = {
    "sym_int4": "4 bits, codes around zero",
    "asym_int4": "4 bits, with a smallest value for each group",
    "sym_int8": "8 bits",
    "q4_k": "4 bits in blocks of 256, with minimums (llama.cpp's Q4_K)",
    "q5_k": "5 bits, likewise",
    "q6_k": "6 bits in blocks of 256, codes around zero (Q6_K)",
    "q3_k": "3 bits, likewise",
    "q2_k": "2 bits in blocks of 256, with minimums",
    "sym_int5": "5 bits, codes around zero (Q5_0)",
    "asym_int5": "5 bits, with a smallest value for each group (Q5_1)",
    "iq4_nl": "4 bits that count a table of 16 numbers",
    "iq4_xs": "the same in blocks of 256",
    "mxfp4": "4-bit floats with a shared power of two (gpt-oss)",
    "fp4": "4-bit floats with a scale for 32 of them",
    "nf4": "4 bits that count quantiles of a normal distribution",
    "nf3": "3 bits, likewise",
    "fp6": "6-bit floats",
    "fp8_e4m3": "8-bit floats, of which 3 are mantissa",
    "fp8_e5m2": "8-bit floats, of which 2 are mantissa",
    "sym_int3": "3 bits, codes around zero",
    "sym_int2": "2 bits, codes around zero",
    "fp16": "16 bits, of which 10 are mantissa",
    "bf16": "16 bits, with float32's range",
    "fp32": "32 bits, as most checkpoints were trained",
}
"""Low-bit format -> what it is."""
