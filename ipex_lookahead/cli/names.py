"""What strategies and instruction sets are called, for help, completion and checks that must not wait for them.

Their rooms need numpy, which ``--help`` should not import; a test holds these lists against ``PROPOSERS`` and
``SECOND_MODEL``. (Formats: ``low_bits.py``.)
"""

from __future__ import annotations

from ipex_lookahead.low_bits import LOW_BITS, PRESETS

FORMATS = f"{', '.join([*LOW_BITS][:-1])} or {[*LOW_BITS][-1]}"
"""The formats in a sentence."""
WEIGHTS = f"{', '.join(LOW_BITS)}; a mixture ({', '.join(PRESETS)}) or a .yaml file of rules"
"""What weights may be loaded in, in a sentence."""

ISAS = {
    "amx_int8": "Sapphire Rapids and later Xeons",
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

PEERS = {
    "llama-cpp-python": "GGUF files",
    "openvino-genai": "GGUF files and OpenVINO folders",
    "transformers": "Hugging Face folders and GGUF files, in bfloat16",
    "ipex-llm": "Hugging Face folders, in its own low-bit formats",
}
"""Program that ``bench compare`` runs beside ours -> what it reads."""

NEEDS_DRAFT_MODEL = "draft_model"
NEEDS_A_COPY = "self_speculation"
"""The strategies that need a second model beside the first."""
