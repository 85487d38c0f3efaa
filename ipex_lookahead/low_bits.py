"""Names of the low-bit formats, importable without numpy so that ``--help`` and shell completion stay fast.

Each name of ``LOW_BITS`` is a row of ``formats/table.py``.
"""

from __future__ import annotations

LOW_BITS = {
    "sym_int4": "4 bits, symmetric",
    "asym_int4": "4 bits, with a minimum per group",
    "sym_int8": "8 bits",
    "q4_k": "4 bits in blocks of 256, with minimums (llama.cpp's Q4_K)",
    "q5_k": "5 bits in blocks of 256, with minimums (Q5_K)",
    "q6_k": "6 bits in blocks of 256, symmetric (Q6_K)",
    "q3_k": "3 bits in blocks of 256, symmetric (Q3_K)",
    "q2_k": "2 bits in blocks of 256, with minimums (Q2_K)",
    "sym_int5": "5 bits, symmetric (Q5_0)",
    "asym_int5": "5 bits, with a minimum per group (Q5_1)",
    "iq4_nl": "4 bits, codes index a table of 16 numbers",
    "iq4_xs": "iq4_nl in blocks of 256",
    "mxfp4": "4-bit floats with a shared power of two (gpt-oss)",
    "fp4": "4-bit floats with a scale per 32",
    "nf4": "4 bits, codes index quantiles of a normal distribution",
    "nf3": "3 bits, codes index quantiles of a normal distribution",
    "fp6": "6-bit floats",
    "fp8_e4m3": "8-bit floats with 3 mantissa bits",
    "fp8_e5m2": "8-bit floats with 2 mantissa bits",
    "sym_int3": "3 bits, symmetric",
    "sym_int2": "2 bits, symmetric",
    "zero_int4": "4 bits, with a zero point per group (GPTQ, AWQ)",
    "zero_int8": "8 bits, with a zero point per group (GPTQ)",
    "bnb_nf4": "nf4 with a float32 scale per 64 (bitsandbytes)",
    "bnb_fp4": "bitsandbytes' 4-bit floats with a float32 scale per 64",
    "sym_int8_fp32": "8 bits with a float32 scale per 64 (ipex-llm's sym_int8)",
    "fp8_e4m3_fp32": "8-bit floats with a float32 scale per 64 (ipex-llm's fp8_e4m3)",
    "fp16": "16-bit floats with 10 mantissa bits",
    "bf16": "16-bit floats with float32's range",
    "fp32": "32-bit floats",
}
"""Low-bit format -> description."""

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
"""Names of ipex-llm (``woq_int4`` is ``sym_int4`` in another order) and llama.cpp -> the format or preset here."""

PRESETS = {
    "gguf_q4k_m": "llama.cpp's Q4_K_M: q4_k, and q6_k for sensitive layers",
    "gguf_q4k_s": "llama.cpp's Q4_K_S: q4_k, q6_k for the output layer, a little q5_k",
    "mixed_fp4": "sym_int4 or fp4 per matrix, whichever has less error",
    "mixed_fp8": "sym_int8 or fp8_e4m3 per matrix, whichever has less error",
    "sym_int4_head5": "sym_int4, and sym_int5 for the output layer",
}
"""Preset -> description; the rules are in ``formats/presets/NAME.yaml`` (see ``formats/rules.py``)."""

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
"""ipex-llm formats without quantization support here -> the nearest supported format."""

NAMES = (*LOW_BITS, *PRESETS, *ALIASES)
"""Values of ``load_in_low_bit``, which also takes the path of a file of rules."""

ALL_LOW_BITS = "all"
"""Value of ``bench quality --low-bit`` that selects every format and preset."""


def is_rules_file(name: str) -> bool:
    """Return True if a format's name is the path of a file of rules."""
    return name.endswith((".yaml", ".yml"))


def why_not_made(name: str) -> str:
    """Return the reason why a format in ``NOT_MADE`` is not supported."""
    if name.startswith("gguf_iq"):
        why = "needs an importance matrix and tables that only llama.cpp has"
    elif name.endswith("_rtn"):
        why = "is for ipex-llm's NPU"
    else:
        why = "is for ipex-llm's Intel GPUs"
    return f"{name} {why}; use {NOT_MADE[name]}, the nearest supported format"
