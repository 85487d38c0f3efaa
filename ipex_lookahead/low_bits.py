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
    "zero_int4": "4 bits, with a whole zero point for each group (GPTQ, AWQ)",
    "zero_int8": "8 bits, likewise",
    "bnb_nf4": "nf4 with a float32 scale for 64 of them (bitsandbytes)",
    "bnb_fp4": "4-bit floats of bitsandbytes's own, likewise",
    "sym_int8_fp32": "8 bits with a float32 scale for 64 of them (ipex-llm's sym_int8)",
    "fp8_e4m3_fp32": "8-bit floats, likewise (ipex-llm's fp8_e4m3)",
    "fp16": "16 bits, of which 10 are mantissa",
    "bf16": "16 bits, with float32's range",
    "fp32": "32 bits, as most checkpoints were trained",
}
"""Low-bit format -> what it is."""

ALIASES = {
    "fp8": "fp8_e5m2",
    "woq_int4": "sym_int4",
    "q4_0": "sym_int4",
    "q4_1": "asym_int4",
    "q5_0": "sym_int5",
    "q5_1": "asym_int5",
    "q8_0": "sym_int8",
    "q4_k_m": "gguf_q4k_m",
    "q4_k_s": "gguf_q4k_s",
}
"""Other people's name -> ours, a format's or a preset's: ipex-llm's (its ``woq_int4`` is ``sym_int4`` in another order)
and llama.cpp's."""

PRESETS = {
    "gguf_q4k_m": "llama.cpp's Q4_K_M: q4_k, and q6_k where it matters most",
    "gguf_q4k_s": "llama.cpp's Q4_K_S: q4_k, q6_k for the output layer, a little q5_k",
    "mixed_fp4": "of sym_int4 and fp4 what suits a matrix better",
    "mixed_fp8": "of sym_int8 and fp8_e4m3 what suits a matrix better",
    "sym_int4_head5": "sym_int4, and sym_int5 for the output layer",
}
"""``formats/presets/NAME.yaml`` -> what it is: rules which matrix gets which format (``formats/rules.py``)."""

NOT_MADE = {
    "gguf_iq1_s": "q2_k",
    "gguf_iq1_m": "q2_k",
    "gguf_iq2_xxs": "q2_k",
    "gguf_iq2_xs": "q2_k",
    "fp6_k": "fp6",
    "sym_int4_rtn": "sym_int4",
    "asym_int4_rtn": "asym_int4",
    "sym_int8_rtn": "sym_int8",
    "torch_fp8": "fp8_e5m2",
    "torch_fp8_e5m2": "fp8_e5m2",
    "torch_fp8_e4m3": "fp8_e4m3",
}
"""Formats of ipex-llm that weights are not quantised to here -> the nearest that they are."""

NAMES = (*LOW_BITS, *PRESETS, *ALIASES)
"""All that ``load_in_low_bit`` takes beside the path of a file of rules."""


ALL_LOW_BITS = "all"
"""The word of ``bench quality`` for every format and preset."""


def is_rules_file(name: str) -> bool:
    """Whether a format's name is the path of a file of rules."""
    return name.endswith((".yaml", ".yml"))


def why_not_made(name: str) -> str:
    """What to say of a format in ``NOT_MADE``."""
    if name.startswith("gguf_iq"):
        why = "needs an importance matrix and tables that only llama.cpp has"
    elif name.endswith("_rtn"):
        why = "is for ipex-llm's NPU"
    else:
        why = "is for ipex-llm's Intel GPUs"
    return f"{name} {why}; {NOT_MADE[name]} is the nearest that weights can be quantised to here"
