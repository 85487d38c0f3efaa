"""What formats and strategies are called, for help, completion and checks that must not wait for the real ones.

Their rooms need numpy, which ``--help`` should not import; a test holds these lists against ``FORMATS``, ``PROPOSERS``
and ``SECOND_MODEL``.
"""

from __future__ import annotations

LOW_BITS = {
    "sym_int4": "4 bits, codes around zero",
    "asym_int4": "4 bits, with a smallest value for each group",
    "sym_int8": "8 bits",
    "fp16": "16 bits, of which 10 are mantissa",
    "bf16": "16 bits, with float32's range",
    "fp32": "32 bits, as most checkpoints were trained",
}
"""Low-bit format -> what it is."""

ISAS = {
    "avx512_vnni": "Ice Lake, Zen 4 and later",
    "avx_vnni": "Alder Lake and later",
    "avx2": "Haswell, Zen and later",
    "scalar": "any x86-64",
}
"""Instruction set -> the processors that have it."""

STRATEGIES = {
    "auto": "several sources at once, and earlier answers",
    "jacobi": "n-grams of a window that runs ahead (Lookahead Decoding)",
    "prompt_lookup": "what followed the same words before",
    "recycling": "what followed the same token before",
    "suffix": "the longest repetition, also of stored answers",
    "draft_model": "a smaller model (--draft-model)",
    "self_speculation": "a low-bit copy of the model",
}
"""Strategy -> where its drafts come from."""

NEEDS_DRAFT_MODEL = "draft_model"
NEEDS_A_COPY = "self_speculation"
"""The strategies that need a second model beside the first."""
