"""Names of arguments and options in other libraries, for hints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from ipex_lookahead.errors import InputError

OTHER_NAMES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "n_predict": "max_new_tokens",
    "num_predict": "max_new_tokens",
    "repeat_penalty": "repetition_penalty",
    "stop_strings": "stop",
    "do_sample": "temperature",
    "response_format": "schema",
    "json_schema": "schema",
    "enable_thinking": "think",
    "thinking_budget": "think_budget",
    "reasoning_budget": "think_budget",
    "temp": "temperature",
}
"""Names of other libraries -> ours, for hints."""
OTHER_USES = {
    "stream": "llm.stream yields the text as it is generated",
    "sampling_params": "pass its settings by name: temperature=0.7, top_p=0.9, max_new_tokens=64",
    "generation_config": "pass its settings by name: temperature=0.7, top_p=0.9, max_new_tokens=64",
}
"""Names of other libraries without an option of the same kind -> the hint."""
OTHER_SETTINGS = {
    "model_path": "model",
    "model_id": "model",
    "repo_id": "model",
    "n_ctx": "max_context",
    "num_ctx": "max_context",
    "max_model_len": "max_context",
    "n_threads": "threads",
    "n_gpu_layers": "gpu_layers",
    "max_num_seqs": "slots",
    "quantization": "low_bit",
    "load_in_low_bit": "low_bit",
    "load_in_4bit": "low_bit",
    "dtype": "low_bit",
    "torch_dtype": "low_bit",
    "kv_cache_dtype": "kv_cache",
    "type_k": "kv_cache",
    "type_v": "kv_cache",
    "speculative_config": "lookahead",
    "verbose": "progress",
}
"""Arguments of the model classes of other libraries -> ours, for hints."""


def refuse_unknown(kind: str, given: Iterable[str], known: Collection[str], others: Mapping[str, str]) -> None:
    """Raise InputError for the first name that is not known, with the name that was meant as hint."""
    for name in given:
        if name not in known:
            near = others.get(name) or next(iter(get_close_matches(name, sorted(known), 1)), "")
            hint = f"did you mean {near}?" if near else f"choose one of {', '.join(known)}"
            raise InputError(f"unknown {kind} {name!r}", hint=OTHER_USES.get(name, hint))
