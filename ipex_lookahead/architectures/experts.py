"""How many experts a mixture has and how many a row goes to, as transformers' configs say it."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import Source, integer
from ipex_lookahead.architectures.keys import GgufSource

MAX_EXPERTS = 1024
MAX_IN_ALL = 1 << 15
"""Experts of all layers: a config alone must not make millions of tensors' descriptions (Kimi K2 has 23,040)."""

count = integer(1, MAX_EXPERTS)
"""A check for a number of experts."""


def check_experts(config: dict[str, Any], source: Source, key: str, *, usual: int) -> None:
    """Give the count of experts the one name ``key``, of the two that transformers takes, and hold it to the others.

    ``usual``: transformers' number where neither is there. Raises ModelFormatError.
    """
    given = {name: config.pop(name) for name in ("num_experts", "num_local_experts") if name in config}
    if len(set(given.values())) > 1:
        raise source.error(
            "num_experts", f"is {given['num_experts']}, but num_local_experts is {given['num_local_experts']}"
        )
    experts = config[key] = next(iter(given.values()), usual)
    named, layers = next(iter(given), key), config["num_hidden_layers"]
    if experts * layers > MAX_IN_ALL:
        raise source.error(named, f"is {experts} in each of {layers} layers; at most {MAX_IN_ALL} in all are read")
    if config["num_experts_per_tok"] > experts:
        raise source.error("num_experts_per_tok", f"is {config['num_experts_per_tok']}; there are {experts} experts")


def need_counts(file: GgufSource, architecture: str) -> None:
    """Raise ModelFormatError where a GGUF file does not say how many experts there are, or how many a row goes to."""
    for name in ("expert_count", "expert_used_count"):
        if (key := f"{architecture}.{name}") not in file.metadata:
            raise file.error(key, None, "is missing")
