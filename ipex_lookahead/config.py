"""Immutable settings, validated on creation."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_preset
from ipex_lookahead.files.safe_yaml import load_yaml

MAX_DRAFT = 128
"""Maximum number of drafted tokens per step: Lookahead Decoding with W = G = 15 and N = 5 needs 119."""

DRAFT_VOCAB = 32768
"""Tokens that a trained head may draft: with a vocabulary of 248,320 the full lm_head would dominate draft cost."""

STORE_STRATEGIES = ("auto", "suffix")
"""Strategies that use a store of earlier outputs."""

OCCURRENCES = ("last", "first")
"""Match that prompt lookup copies from."""

MEMORY_STORE = "memory"
"""The ``store`` in memory, which belongs to the model object. "memory:NAME" is a separate one."""
NO_STORE = "none"
"""The ``store`` that retains nothing between generations."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Valid range of a numeric setting, also used by the command's options and the server's fields.

    Attributes:
        kind: ``int`` or ``float``.
        low, high: smallest and largest value; ``high`` None: unbounded.
        above: True if ``low`` itself is excluded.
    """

    kind: type[int] | type[float]
    low: float
    high: float | None = None
    above: bool = False

    def __str__(self) -> str:
        """Return the range as in error messages."""
        number = "a whole number" if self.kind is int else "a number"
        if self.high is None:
            return f"{number} of at least {self.low}"
        low = f"above {self.low} and at most" if self.above else f"from {self.low} to"
        return f"{number} {low} {self.high}"

    def allow(self, value: object) -> bool:
        """Return True if the value is in the range."""
        if not isinstance(value, int if self.kind is int else (int, float)) or isinstance(value, bool):
            return False
        return (
            value >= self.low and (self.high is None or value <= self.high) and not (self.above and value == self.low)
        )


def bounded(
    default: Any,
    kind: type[int] | type[float],
    low: float,
    high: float | None = None,
    above: bool = False,
) -> Any:
    """Return a dataclass field with :class:`Bounds`."""
    return field(default=default, metadata={"bounds": Bounds(kind, low, high, above)})


def bounds_of(settings: type, name: str) -> Bounds:
    """Return the bounds of a field of a settings class."""
    found: Bounds = next(one.metadata["bounds"] for one in fields(settings) if one.name == name)
    return found


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """Settings of drafting. They never change the output.

    Attributes:
        strategy: a key of ``PROPOSERS``.
        num_draft_tokens: maximum number of drafted tokens per step, 0 (lookahead off) to 128.
        max_matching_ngram_size: longest n-gram that prompt lookup matches (ipex-llm's name), 1 to 64.
        adaptive: draft only where measured costs and acceptance predict a gain; False: always draft up to
            ``num_draft_tokens`` tokens.
        draft_min_prob: a draft model ends its draft after a token with a lower probability, and a head its chain when
            the chain's probability of acceptance is lower, 0 to 1. A head selected by name uses 0 (ipex-llm's
            ``th_stop_draft``).
        draft_min_tokens: minimum draft length before ``draft_min_prob`` applies, 1 to 128 (ipex-llm's
            ``min_step_draft``).
        draft_min_prob_auto: adapt ``draft_min_prob`` to the acceptance rate (ipex-llm's ``auto_th_stop_draft``).
        window: ``jacobi``: columns of the window (the paper's W), 1 to 60.
        ngram: ``jacobi``: tokens per n-gram (the paper's N), 2 to 16.
        guesses: ``jacobi``: n-grams stored per token and verified per step (the paper's G), 1 to 60.
        store: ``suffix`` and ``auto``: file with the outputs of earlier generations, created if missing. "memory": in
            memory, per model object; "memory:NAME": shared by all models with this name; "none": no store (for files
            with such names give "./memory" and "./none"). None: "memory" for ``auto`` and "none" for ``suffix``.
        occurrence: ``prompt_lookup``: the match that is copied, "last", or "first" as in transformers.
    """

    strategy: str = "prompt_lookup"
    num_draft_tokens: int = bounded(3, int, 0, MAX_DRAFT)
    max_matching_ngram_size: int = bounded(3, int, 1, 64)
    adaptive: bool = True
    draft_min_prob: float = bounded(0.6, float, 0, 1)
    draft_min_tokens: int = bounded(1, int, 1, MAX_DRAFT)
    draft_min_prob_auto: bool = False
    window: int = bounded(15, int, 1, 60)
    ngram: int = bounded(5, int, 2, 16)
    guesses: int = bounded(15, int, 1, 60)
    store: str | None = None
    occurrence: str = "last"

    def __post_init__(self) -> None:
        for one in fields(self):
            bounds, value = one.metadata.get("bounds"), getattr(self, one.name)
            if bounds is not None and not bounds.allow(value):
                raise InputError(argument=one.name, got=value, allowed=str(bounds))
        if self.occurrence not in OCCURRENCES:
            raise InputError(argument="occurrence", got=self.occurrence, allowed="'last' or 'first'")
        if self.store is not None and (not isinstance(self.store, str) or not self.store):
            allowed = "the path of a file as a string, 'memory', 'none' or None"
            raise InputError(argument="store", got=self.store, allowed=allowed)
        if self.store is not None and self.strategy not in STORE_STRATEGIES:
            raise InputError(f"strategy {self.strategy!r} uses no store; use {' or '.join(STORE_STRATEGIES)}")
        _is_flag("adaptive", self.adaptive)
        _is_flag("draft_min_prob_auto", self.draft_min_prob_auto)

    @property
    def remembering(self) -> str | None:
        """Store in use: "memory", "memory:NAME" or the path of a file; None: no store."""
        if self.store is None:
            return MEMORY_STORE if self.strategy == "auto" else None
        return None if self.store == NO_STORE else self.store

    @classmethod
    def from_yaml(cls, path: str | Path) -> LookaheadConfig:
        """Read a YAML file, or a packaged preset by its name, such as "auto"; raise InputError if it is invalid."""
        loaded: Any = load_yaml(given_preset(path, "lookahead"), error=InputError)
        if not isinstance(loaded, dict):
            raise InputError(f"{path}: a lookahead preset is a YAML mapping, got {type(loaded).__name__}")
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(map(str, loaded)) - known):
            raise InputError(f"{path}: unknown key {unknown[0]!r}: choose one of {', '.join(sorted(known))}")
        return cls(**loaded)


def is_memory(store: str) -> bool:
    """Return True if the store is in memory."""
    return store == MEMORY_STORE or store.startswith(f"{MEMORY_STORE}:")


def _is_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(argument=name, got=value, allowed="True or False")
