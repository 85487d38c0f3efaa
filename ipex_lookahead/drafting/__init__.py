"""What may come next: one proposer a file. To add one: its file, its preset, and a line here."""

from __future__ import annotations

from collections.abc import Callable

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.prompt_lookup import PromptLookup
from ipex_lookahead.errors import InputError

PROPOSERS: dict[str, Callable[[LookaheadConfig], Proposer]] = {
    "prompt_lookup": lambda config: PromptLookup(config.max_matching_ngram_size),
}
"""Strategy name -> how to make its proposer for one sequence."""


def make_proposer(config: LookaheadConfig) -> Proposer:
    """A fresh proposer for one sequence. Raises InputError for a strategy that is not known."""
    if config.strategy not in PROPOSERS:
        known = ", ".join(sorted(PROPOSERS))
        raise InputError(f"lookahead strategy {config.strategy!r} is not known; choose one of {known}")
    return PROPOSERS[config.strategy](config)


__all__ = ["PROPOSERS", "Draft", "Outcome", "PromptLookup", "Proposer", "make_proposer"]
