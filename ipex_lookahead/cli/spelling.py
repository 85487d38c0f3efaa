"""Errors name the arguments of Python; on the command line the same things are options.

The package below raises one error for everybody. Here, and nowhere else, its words are told in the command's: what
``ARGUMENTS`` lists, written ``name=value``, or as a name that no English sentence would hold.
"""

from __future__ import annotations

import re

ARGUMENTS = {
    "load_in_low_bit": "--low-bit",
    "load_in_4bit": "--low-bit sym_int4",
    "low_bit": "--low-bit",
    "group_size": "--group-size",
    "mixed_precision": "--mixed-precision",
    "kv_cache": "--kv-cache",
    "imatrix": "--imatrix",
    "draft_model": "--draft-model",
    "threads": "--threads",
    "engine": "--engine",
    "device": "--device",
    "deterministic": "--deterministic",
    "overwrite": "--overwrite",
    "max_new_tokens": "--max-new-tokens",
    "stop_strings": "--stop",
    "lookahead": "--lookahead",
    "num_draft_tokens (lookahead)": "--lookahead",
    "num_draft_tokens": "--lookahead",
    "strategy": "--strategy",
    "store": "--store",
    "window": "--window",
    "ngram": "--ngram",
    "guesses": "--guesses",
    "draft_min_prob": "--draft-min-prob",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "seed": "--seed",
    "repetition_penalty": "--repetition-penalty",
    "presence_penalty": "--presence-penalty",
    "frequency_penalty": "--frequency-penalty",
    "model.save_low_bit(folder)": "ipex-lookahead quantize",
    "save_low_bit": "ipex-lookahead quantize",
}
"""What Python calls it -> what the command line does."""

PYTHON_ONLY = (
    "local_files_only",
    "speculative",
    "modules_to_not_convert",
    "remove_invalid_values",
    "ipex",
    "device_map",
    "do_sample",
)
"""Arguments without an option: they stay as they are, with a word that they are Python's."""

_NAMES = "|".join(re.escape(name) for name in sorted([*ARGUMENTS, *PYTHON_ONLY], key=len, reverse=True))
_VALUE = r"""True|False|\.\.\.|'[^']*'|"[^"]*"|\[[^\]]*\]|[\w.+-]*\w"""
_PATTERN = re.compile(rf"""(?<![\w'"./-])(?<!ipex-llm's )({_NAMES})(?:(=)({_VALUE})?)?(?![\w/'"-])""")


def in_options(text: str) -> str:
    """The same sentence for the command line."""
    return _PATTERN.sub(_in_options, text)


def _in_options(found: re.Match[str]) -> str:
    name, assigned, value = found[1], found[2], found[3]
    if not assigned and name.isalpha():  # an English word: "the threads", "a store"
        return found[0]
    if name in PYTHON_ONLY:
        return f"{found[0]} (in Python)"
    option = ARGUMENTS[name]
    if value == "False":
        return option.replace("--", "--no-", 1)
    if value in (None, "True", "..."):
        return option
    return f"{option} {value.strip(chr(39) + chr(34))}"
