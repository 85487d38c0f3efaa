"""Frozen settings, validated where they are made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.safe_yaml import load_yaml

MAX_DRAFT = 128
"""Most drafted rows a step: as many as Lookahead Decoding's window takes (W = G = 15, N = 5: 119); more never paid."""

DRAFT_VOCAB = 32768
"""Tokens that a trained head may draft: of 248,320 the whole lm_head would be most of what a draft costs."""

STORE_STRATEGIES = ("auto", "suffix")
"""Strategies that look into a store of earlier outputs."""

OCCURRENCES = ("last", "first")
"""Where prompt lookup may copy from."""

MEMORY_STORE = "memory"
"""The ``store`` that is no file: it belongs to the model object and goes with it. "memory:NAME" is one of its own."""
NO_STORE = "none"
"""The ``store`` that remembers nothing beyond a generation."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number may be; the command's options and the server's fields read it where the setting is declared.

    Attributes:
        kind: ``int`` or ``float``.
        low, high: the least and the largest value; ``high`` None: there is none.
        above: ``low`` itself is too small.
    """

    kind: type[int] | type[float]
    low: float
    high: float | None = None
    above: bool = False

    def __str__(self) -> str:
        """As a message says it."""
        number = "a whole number" if self.kind is int else "a number"
        if self.high is None:
            return f"{number} of at least {self.low}"
        low = f"above {self.low} and at most" if self.above else f"from {self.low} to"
        return f"{number} {low} {self.high}"

    def allow(self, value: object) -> bool:
        """Whether a value is such a number."""
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
    """A field with :class:`Bounds`."""
    return field(default=default, metadata={"bounds": Bounds(kind, low, high, above)})


def bounds_of(settings: type, name: str) -> Bounds:
    """Those of a field of a class of settings, which has some."""
    found: Bounds = next(one.metadata["bounds"] for one in fields(settings) if one.name == name)
    return found


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """How drafts are made. By promise 1 nothing here changes the output.

    Attributes:
        strategy: a key of ``PROPOSERS``.
        num_draft_tokens: most drafted tokens a step, 0 (lookahead off) to 128.
        max_matching_ngram_size: longest n-gram that prompt lookup matches (ipex-llm's name), 1 to 64.
        adaptive: spend rows only where the measured costs and acceptance say that it pays; False always drafts as
            many tokens as the proposer has, up to ``num_draft_tokens``.
        draft_min_prob: a second model ends its draft with a token that it gives a lower probability, 0 to 1, and a head
            its chain where all of it is less likely right; a head that is asked for by name has 0 (ipex-llm's
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
            allowed = "the path of a file, as text, 'memory', 'none' or None"
            raise InputError(argument="store", got=self.store, allowed=allowed)
        if self.store is not None and self.strategy not in STORE_STRATEGIES:
            raise InputError(f"strategy {self.strategy!r} looks into no store; use {' or '.join(STORE_STRATEGIES)}")
        _is_flag("adaptive", self.adaptive)
        _is_flag("draft_min_prob_auto", self.draft_min_prob_auto)

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


def _is_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(argument=name, got=value, allowed="True or False")
