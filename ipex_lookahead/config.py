"""Frozen settings, validated where they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.safe_yaml import load_yaml

MAX_DRAFT = 128
"""Most drafted rows a step: as many as Lookahead Decoding's window takes (W = G = 15, N = 5: 119); more never paid."""

STORE_STRATEGIES = ("auto", "suffix")
"""Strategies that look into a store of earlier outputs."""

OCCURRENCES = ("last", "first")
"""Where prompt lookup may copy from."""

MEMORY_STORE = "memory"
"""The ``store`` that is no file: it belongs to the model object and goes with it. "memory:NAME" is one of its own."""
NO_STORE = "none"
"""The ``store`` that remembers nothing beyond a generation."""


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """How drafts are made. By promise 1 nothing here changes the output.

    Attributes:
        strategy: a key of ``PROPOSERS``.
        num_draft_tokens: most drafted tokens a step, 0 (lookahead off) to 128.
        max_matching_ngram_size: longest n-gram that prompt lookup matches (ipex-llm's name), 1 to 64.
        adaptive: spend rows only where the measured costs and acceptance say that it pays; False always drafts as
            many tokens as the proposer has, up to ``num_draft_tokens``.
        draft_min_prob: a draft model ends its draft with a token that it gives a lower probability, 0 to 1 (ipex-llm's
            ``th_stop_draft``).
        draft_min_tokens: but not before it has so many, 1 to 128 (ipex-llm's ``min_step_draft``).
        draft_min_prob_auto: let that threshold follow the acceptance (ipex-llm's ``auto_th_stop_draft``).
        window: ``jacobi``: columns of the window (the paper's W), 1 to 60.
        ngram: ``jacobi``: tokens of an n-gram (the paper's N), 2 to 16.
        guesses: ``jacobi``: n-grams that are kept for a token and verified at a time (the paper's G), 1 to 60.
        store: ``suffix`` and ``auto``: file with the outputs of earlier generations, made where there is none;
            "memory" remembers those of this model object, in memory only, "memory:NAME" those that were given the same
            name; "none" remembers nothing beyond a generation (files of such names are "./memory" and "./none").
            None is "memory" for ``auto`` and "none" for ``suffix``.
        occurrence: ``prompt_lookup``: the occurrence that is copied from, "last", or "first" as in transformers.
    """

    strategy: str = "prompt_lookup"
    num_draft_tokens: int = 3
    max_matching_ngram_size: int = 3
    adaptive: bool = True
    draft_min_prob: float = 0.6
    draft_min_tokens: int = 1
    draft_min_prob_auto: bool = False
    window: int = 15
    ngram: int = 5
    guesses: int = 15
    store: str | None = None
    occurrence: str = "last"

    def __post_init__(self) -> None:
        _in_range("num_draft_tokens (lookahead)", self.num_draft_tokens, 0, MAX_DRAFT)
        _in_range("max_matching_ngram_size", self.max_matching_ngram_size, 1, 64)
        _in_range("window", self.window, 1, 60)
        _in_range("ngram", self.ngram, 2, 16)
        _in_range("guesses", self.guesses, 1, 60)
        if self.occurrence not in OCCURRENCES:
            raise InputError(f"occurrence is {self.occurrence!r}; it must be 'last' or 'first'")
        if self.store is not None and (not isinstance(self.store, str) or not self.store):
            raise InputError(
                f"store is {self.store!r}; it must be the path of a file, as text, 'memory', 'none' or None"
            )
        if self.store is not None and self.strategy not in STORE_STRATEGIES:
            raise InputError(f"strategy {self.strategy!r} looks into no store; use {' or '.join(STORE_STRATEGIES)}")
        _is_probability("draft_min_prob (th_stop_draft)", self.draft_min_prob)
        _in_range("draft_min_tokens (min_step_draft)", self.draft_min_tokens, 1, MAX_DRAFT)
        _is_flag("adaptive", self.adaptive)
        _is_flag("draft_min_prob_auto (auto_th_stop_draft)", self.draft_min_prob_auto)

    @property
    def remembering(self) -> str | None:
        """The store in use: "memory", the path of its file, or None."""
        if self.store is None:
            return MEMORY_STORE if self.strategy == "auto" else None
        return None if self.store == NO_STORE else self.store

    @classmethod
    def from_yaml(cls, path: str | Path) -> LookaheadConfig:
        """Read a preset. Raises InputError for a file that is none; of an unknown key it lists the known ones."""
        loaded: Any = load_yaml(given_path(path), error=InputError)
        if not isinstance(loaded, dict):
            raise InputError(f"{path}: a lookahead preset is a YAML mapping, got {type(loaded).__name__}")
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(map(str, loaded)) - known):
            raise InputError(f"{path}: unknown key {unknown[0]!r}; the known keys are {', '.join(sorted(known))}")
        return cls(**loaded)


def is_memory(store: str) -> bool:
    """Whether the store of that name has no file."""
    return store == MEMORY_STORE or store.startswith(f"{MEMORY_STORE}:")


def _in_range(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def _is_probability(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise InputError(f"{name} is {value!r}; it must be a number from 0 to 1")


def _is_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; it must be True or False")
