"""Proposers of drafts. To add one: its file, its preset, and a line in ``PROPOSERS``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.draft_model import DraftChoice, DraftModel, Prefixes
from ipex_lookahead.drafting.jacobi import Jacobi
from ipex_lookahead.drafting.partial_matching import PartialMatching, auto, recycling, suffix
from ipex_lookahead.drafting.prompt_lookup import PromptLookup
from ipex_lookahead.engines.api import Cache, Engine, OutputRequest
from ipex_lookahead.engines.images import ImageRows
from ipex_lookahead.errors import InputError, arg

PROPOSERS: dict[str, Callable[[LookaheadConfig, Any], Proposer]] = {
    "auto": lambda config, store: auto(store),
    "jacobi": lambda config, store: Jacobi(config.window, config.ngram, config.guesses),
    "prompt_lookup": lambda config, store: PromptLookup(config.max_matching_ngram_size, config.occurrence),
    "recycling": lambda config, store: recycling(),
    "suffix": lambda config, store: suffix(store),
}
"""Strategy name -> factory of its proposer for one sequence, from the settings and ``Store.suffixes`` or None."""

SECOND_MODEL = {
    "draft_model": f"pass {arg('draft_model')} to generate",
    "self_speculation": f"load the model with {arg('speculative', True)}",
}
"""Strategies that need the engine of a second model -> how to give them one."""


HEADS = frozenset({"head"})
"""Strategies that use a trained head, which is loaded with a model."""


def make_proposer(config: LookaheadConfig, store: Any = None) -> Proposer:
    """Create a proposer for one sequence. Raises InputError for an unknown strategy or one with a second model.

    ``store`` is an open store's ``suffixes``, for the strategies that use it; the caller opens ``config.store``.
    """
    if config.strategy in SECOND_MODEL:
        raise InputError(f"strategy {config.strategy!r} needs a second model; {SECOND_MODEL[config.strategy]}")
    if config.strategy in HEADS:
        raise InputError(f"strategy {config.strategy!r} drafts with a head, which comes with a model; call generate")
    if config.strategy not in PROPOSERS:
        known = ", ".join(sorted([*PROPOSERS, *SECOND_MODEL, *HEADS]))
        raise InputError(f"lookahead strategy {config.strategy!r} is not known; choose one of {known}")
    return PROPOSERS[config.strategy](config, store)


def make_second_model_proposer(
    config: LookaheadConfig,
    engine: Engine,
    cache: Cache,
    choose: DraftChoice | None,
    end_tokens: Collection[int] = (),
    prefixes: Prefixes | None = None,
    key: str = "",
    images: ImageRows | None = None,
) -> DraftModel:
    """Return a new proposer for one sequence, for a strategy of ``SECOND_MODEL``.

    ``engine`` is the second model's and ``cache`` the target's. ``prefixes`` and ``key`` are for a second model that
    has KV caches of its own; see :class:`DraftModel`. ``images`` are those of the prompt, for a copy of the target;
    other draft models read its placeholders.
    """
    options: dict[str, Any] = {
        "min_prob": config.draft_min_prob,
        "min_tokens": config.draft_min_tokens,
        "adapt": config.draft_min_prob_auto,
        "end_tokens": end_tokens,
    }
    if config.strategy == "self_speculation":
        return DraftModel(engine, choose, shared=cache, images=images, **options)
    return DraftModel(engine, choose, prefixes=prefixes, key=key, **options)


__all__ = [
    "HEADS",
    "PROPOSERS",
    "SECOND_MODEL",
    "Draft",
    "DraftChoice",
    "DraftModel",
    "Jacobi",
    "Outcome",
    "OutputRequest",
    "PromptLookup",
    "PartialMatching",
    "Prefixes",
    "Proposer",
    "make_proposer",
    "make_second_model_proposer",
]
