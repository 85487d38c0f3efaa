"""A simulated drafting head for ``bench replay``, with given acceptance rates and the costs of ``bench step``.

Whether a token at a position and depth is right is drawn once from a seed, equal for all compared settings. The
simulation differs from a trained head in two ways. A trained head also knows which drafts are uncertain and stops
there, which makes it better. It is right more often where the text repeats itself, as n-gram drafts are, which makes
it less useful next to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipex_lookahead.controller.calibration import Calibration
from ipex_lookahead.controller.kept import HeadRates
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX, Hidden
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_json import parse, read_file

FILE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a head's draft: its first token (the rows before it included), each more, each copied one."""

    first: float
    each: float
    copied: float

    def of(self, tokens: int, copied: int = 0) -> float:
        """Return the seconds of a chain of ``tokens`` after ``copied`` others."""
        return self.first + (tokens - 1) * self.each + copied * self.copied if tokens else 0.0


@dataclass(frozen=True, slots=True)
class HeadCosts:
    """The costs of a head with one draft vocabulary, from ``bench step --acceptance``.

    Attributes:
        name: "full" or "cut".
        words: Size of the draft vocabulary.
        price: Price of a draft.
    """

    name: str
    words: int
    price: Price


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of the steps of a shape, and of its heads."""

    shape: str
    curve: Calibration
    heads: tuple[HeadCosts, ...]


def load_costs(file: Path) -> StepCosts:
    """Read the output of ``bench step --acceptance ... --json``.

    Raises:
        ModelFormatError: The file cannot be read, or is not JSON.
        InputError: The file is not such a report.
    """
    lines = read_file(file, FILE_BYTES).splitlines()
    found: Any = parse(lines[-1], file) if lines else None
    try:
        costs = found["drafting"]["costs"]
        rows, seconds = [*map(int, costs["rows"])], [*map(float, costs["seconds"])]
        if (
            rows[0] != 1
            or len(rows) != len(seconds)
            or rows != sorted({*rows})
            or seconds[0] <= 0
            or seconds != sorted(seconds)
        ):
            raise ValueError
        curve = Calibration(tuple(rows), tuple(seconds))
        heads = tuple(
            HeadCosts(
                str(name),
                int(one["words"]),
                Price(*(float(one[part]) for part in ("first", "each", "copied"))),
            )
            for name, one in costs["heads"].items()
        )
        return StepCosts(str(found["shape"]), curve, heads)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{file} is not a report of bench step with a head",
            hint=f"make one: bench step --shape llama-3.1-8b --acceptance 0.8,0.7 --json > {file}",
        ) from None


class SimulatedHead:
    """Drafts chains of the recorded text, like :class:`~ipex_lookahead.drafting.heads.HeadChain`.

    Args:
        text: Prompt and answer.
        acceptance: Acceptance rates of the 1st, 2nd, ... token if those before it are accepted; also the most drafted
            tokens. Copied tokens count as depth, because the head reads them without the target's hidden states.
        price: Price of a draft.
        rates: Acceptance rates; the controller updates them.
        seed: Seed of the positions that are right.

    Attributes:
        rates, most: As given, and the most drafted tokens.
        seconds: Drafting time so far.
    """

    wants = ARGMAX

    def __init__(
        self, text: Sequence[int], acceptance: Sequence[float], price: Price, rates: HeadRates, seed: int = 0
    ) -> None:
        self._text = [*text]
        self._acceptance = acceptance
        self._price, self.rates, self.most = price, rates, len(acceptance)
        drawn = np.random.default_rng(seed).random((len(self._text), len(acceptance)))
        self._right = drawn < np.asarray(acceptance, np.float64)
        self.seconds = 0.0

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start after the prompt."""
        self._at = len(prompt)

    def propose(self, budget: int) -> Draft:
        """Return a chain of at most ``budget`` tokens."""
        return self.propose_after((), budget)

    def propose_after(self, copied: Sequence[int], budget: int, min_chance: float = 0.0) -> Draft:
        """Return a chain after copied tokens; it ends where the chance that all are right falls below ``least``."""
        first = len(copied)
        right = [*copied] == self._text[self._at : self._at + first]
        tokens: list[int] = []
        probs: list[float] = []
        chance = 1.0
        for depth in range(first, min(first + budget, len(self._acceptance))):
            place = self._at + depth
            right = right and place < len(self._text) and bool(self._right[place, depth])
            tokens.append(self._text[place] if right else self._other(place))
            probs.append(self._acceptance[depth])
            chance *= probs[-1]
            if chance < min_chance:
                break
        seconds = self._price.of(len(tokens), first)
        self.seconds += seconds
        return Draft(tokens, range(-1, len(tokens) - 1), probs=probs, seconds=seconds)

    def observe(self, outcome: Outcome) -> None:
        """Advance by the emitted tokens."""
        self._at += len(outcome.emitted)

    def _other(self, place: int) -> int:
        """Return a wrong token for a position."""
        return self._text[place] ^ 1 if place < len(self._text) else 0
