"""The names of formats, instruction sets, strategies and arguments on the command line.

These lists repeat ``PROPOSERS`` and ``SECOND_MODEL``, because ``--help`` must not import numpy; a test compares them.
"""

from __future__ import annotations

from ipex_lookahead.errors import LookaheadError

FORMATS = "sym_int4, q4_k, sym_int8, bf16, ... (list: info --formats)"
"""The formats, for a help text."""
WEIGHTS = "sym_int4, q4_k_m, sym_int8, bf16, ... (list: info --formats), or a .yaml file of rules"
"""The formats to load weights in, for a help text."""

ISAS = {
    "amx_int8": "Sapphire Rapids and later Xeons",
    "avx512_vnni": "Ice Lake, Zen 4 and later",
    "avx_vnni": "Alder Lake and later",
    "avx2": "Haswell, Zen and later",
    "scalar": "any x86-64",
}
"""Instruction set -> processors with it."""

STRATEGIES = {
    "auto": "several sources at once, and earlier answers",
    "jacobi": "n-grams of a Jacobi window (Lookahead Decoding)",
    "prompt_lookup": "the continuation of the last n-gram earlier in the text",
    "recycling": "likely successors of each token so far",
    "suffix": "the continuation of the longest match, also in stored answers",
    "draft_model": "a smaller model (--draft-model)",
    "self_speculation": "a low-bit copy of the model",
    "head": "a trained head, the model's own (MTP) or --drafter",
}
"""Strategy -> the source of its drafts."""

NEEDS_DRAFT_MODEL = "draft_model"
NEEDS_A_COPY = "self_speculation"
NEEDS_A_HEAD = "head"
"""The strategies that need a second model."""

_SAME = (
    "low_bit group_size mixed_precision kv_cache imatrix draft_model drafter draft_vocab drafter_low_bit threads "
    "engine device gpu_layers cpu_moe n_cpu_moe deterministic overwrite max_new_tokens lookahead strategy store window "
    "ngram guesses draft_min_prob temperature top_k top_p min_p seed repetition_penalty presence_penalty "
    "frequency_penalty mmproj task dimensions instruction truncate"
).split()
OPTIONS = {
    "cache_dir": "--cache-dir",
    "cache_disk": "--cache-disk",
    **{name: "--" + name.replace("_", "-") for name in _SAME},
    "load_in_low_bit": "--low-bit",
    "stop_strings": "--stop",
    "num_draft_tokens": "--lookahead",
    "save_low_bit": "ipex-lookahead quantize",
    "model.save_low_bit(folder)": "ipex-lookahead quantize",
    "LLM(path).embed(texts)": "ipex-lookahead embed",
}
"""Argument in Python -> option of the command line."""

THEIR_COMMANDS = {
    **dict.fromkeys(("show", "inspect"), "info"),
    **dict.fromkeys(("download", "search"), "pull"),
    **dict.fromkeys(("remove", "delete"), "rm"),
    **dict.fromkeys(("create", "convert"), "quantize"),
    **dict.fromkeys(("start", "server"), "serve"),
    "ps": "list",
}
"""Command of Ollama and other programs -> ours, for hints."""
_THEIR_OPTIONS = {
    "--model": "--hf-repo --hf",
    "--mmproj": "-mm --clip-model-path",
    "--draft-model": "-md --model-draft --spec-draft-model --speculative-model",
    "--low-bit": "--quantization --load-in-low-bit --load-in-4bit",
    "--kv-cache": "-ctk -ctv --cache-type-k --cache-type-v --kv-cache-dtype",
    "--max-context": "-c --ctx-size --num-ctx --n-ctx --max-model-len",
    "--max-new-tokens": "--n-predict --predict --num-predict --max-tokens --max-length",
    "--prompt-file": "--file",
    "--system": "-sys --system-prompt",
    "--json-schema": "-j --json-schema-file --schema --format",
    "--grammar": "--grammar-file",
    "--raw": "-no-cnv --no-conversation",
    "--temperature": "--temp",
    "--seed": "-s",
    "--repetition-penalty": "--repeat-penalty",
    "--lookahead": "--draft --draft-max --spec-draft-n-max --num-speculative-tokens",
    "--threads": "-t --num-thread --num-threads --n-threads",
    "--gpu-layers": "--n-gpu-layers --num-gpu",
    "--slots": "-np --parallel --max-num-seqs",
    "--served-model-name": "-a --alias",
    "--api-key-file": "--api-key",
    "--allow-origin": "--allowed-origins --cors",
}
THEIR_OPTIONS = {theirs: ours for ours, names in _THEIR_OPTIONS.items() for theirs in names.split()}
"""Option of llama.cpp, Ollama or vLLM -> ours, for hints."""
NO_CONTEXT_OPTION = "leave it out: the context is the model's, and the KV cache grows with the text"
"""The hint for an option of the context size, for commands without ``--max-context``."""


def option_of(name: str, value: str) -> str:
    """Return the option for an argument, with a value given as ``repr``, or the argument if it has no option."""
    if name not in OPTIONS:
        return f"{name}={value} (in Python)" if value else f"{name} (in Python)"
    if value == "False":
        return OPTIONS[name].replace("--", "--no-", 1)
    return OPTIONS[name] if value in ("", "True") else f"{OPTIONS[name]} {value.strip(chr(39) + chr(34))}"


def in_options(error: LookaheadError) -> tuple[str, str]:
    """Return message and hint of an error with the names of options."""
    return error.spelled(option_of)
