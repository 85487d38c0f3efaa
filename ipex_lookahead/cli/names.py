"""What strategies, instruction sets and the arguments in errors are called on the command line.

The rooms of strategies and instruction sets need numpy, which ``--help`` should not import; a test holds these lists
against ``PROPOSERS`` and ``SECOND_MODEL``. (Formats: ``low_bits.py``.)
"""

from __future__ import annotations

from ipex_lookahead.errors import LookaheadError
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
    "head": "a trained head, the model's own (MTP) or --drafter",
}
"""Strategy -> where its drafts come from."""

NEEDS_DRAFT_MODEL = "draft_model"
NEEDS_A_COPY = "self_speculation"
NEEDS_A_HEAD = "head"
"""The strategies that need a second model beside the first."""

_SAME = (
    "low_bit group_size mixed_precision kv_cache imatrix draft_model drafter draft_vocab drafter_low_bit threads "
    "engine device gpu_layers deterministic overwrite max_new_tokens lookahead strategy store window ngram guesses "
    "draft_min_prob temperature top_k top_p min_p seed repetition_penalty presence_penalty frequency_penalty"
).split()
OPTIONS = {
    **{name: "--" + name.replace("_", "-") for name in _SAME},
    "load_in_low_bit": "--low-bit",
    "stop_strings": "--stop",
    "num_draft_tokens": "--lookahead",
    "save_low_bit": "ipex-lookahead quantize",
    "model.save_low_bit(folder)": "ipex-lookahead quantize",
}
"""What errors call it, as Python does -> what the command does."""


def option_of(name: str, value: str) -> str:
    """The option for an argument, with the value whose ``repr`` is given; without an option it stays, as Python's."""
    if name not in OPTIONS:
        return f"{name}={value} (in Python)" if value else f"{name} (in Python)"
    if value == "False":
        return OPTIONS[name].replace("--", "--no-", 1)
    return OPTIONS[name] if value in ("", "True") else f"{OPTIONS[name]} {value.strip(chr(39) + chr(34))}"


def in_options(error: LookaheadError) -> tuple[str, str]:
    """Message and hint of an error in the command's words."""
    return error.spelled(option_of)
