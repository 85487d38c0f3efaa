"""Number of experts, and of experts per token, in transformers' configs."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import Source, integer
from ipex_lookahead.architectures.keys import GgufSource

MAX_EXPERTS = 1024
MAX_TOTAL = 1 << 15
"""Maximum number of experts in all layers, so that a config cannot create millions of tensors (Kimi K2 has 23,040)."""

count = integer(1, MAX_EXPERTS)
"""Check for a number of experts."""


def check_experts(config: dict[str, Any], source: Source, key: str, *, default: int) -> None:
    """Store the number of experts under ``key``, one of transformers' two names, and check it against other sizes.

    Args:
        config: the config, modified in place.
        source: its source.
        key: "num_experts" or "num_local_experts".
        default: transformers' default.

    Raises:
        ModelFormatError: if the values are inconsistent.
    """
    given = {name: config.pop(name) for name in ("num_experts", "num_local_experts") if name in config}
    if len(set(given.values())) > 1:
        raise source.error(
            "num_experts", f"is {given['num_experts']}, but num_local_experts is {given['num_local_experts']}"
        )
    experts = config[key] = next(iter(given.values()), default)
    check_total(source, next(iter(given), key), experts, config["num_hidden_layers"])
    if config["num_experts_per_tok"] > experts:
        raise source.error("num_experts_per_tok", f"is {config['num_experts_per_tok']}; there are {experts} experts")


def check_total(source: Source, key: str, experts: int, layers: int) -> None:
    """Raise ModelFormatError if ``layers`` layers with ``experts`` experts each have more than ``MAX_TOTAL``."""
    if experts * layers > MAX_TOTAL:
        raise source.error(key, f"is {experts} in each of {layers} layers; the maximum in total is {MAX_TOTAL}")


def need_counts(file: GgufSource, architecture: str) -> None:
    """Raise ModelFormatError unless a GGUF file has the number of experts and of experts per token."""
    for name in ("expert_count", "expert_used_count"):
        if (key := f"{architecture}.{name}") not in file.metadata:
            raise file.error(key, None, "is missing")
