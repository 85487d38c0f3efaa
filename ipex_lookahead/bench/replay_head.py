"""A head that is only said to be right so often, for replaying: with costs of ``bench step``, under the real choice.

Whether it is right at a place and depth is drawn once, from a seed, so that all that is compared meets the same luck.
It knows no more of its drafts than how often they are right at their depth. A trained head also knows which of them are
doubtful, and ends chains there; but it is right where the text repeats itself more often than elsewhere, which free
sources are as well: the first is in favour of the real head, the second of its being there beside free sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipex_lookahead.controller.calibration import Calibration
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.heads.price import Price
from ipex_lookahead.drafting.heads.record import Record
from ipex_lookahead.engines.api import ARGMAX, Hidden
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_json import parse, read_file

FILE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class HeadCosts:
    """One vocabulary of a head, as ``bench step --acceptance`` measured it.

    Attributes:
        name: "full" or "cut".
        words: tokens that it drafts.
        price: of its tokens, in forwards of one row.
    """

    name: str
    words: int
    price: Price


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What steps of a shape cost, and its heads."""

    shape: str
    curve: Calibration
    heads: tuple[HeadCosts, ...]


def load_costs(file: Path) -> StepCosts:
    """Read what ``bench step --acceptance ... --json`` printed.

    Raises:
        ModelFormatError: the file cannot be read, or is not JSON.
        InputError: it is something else than such a report.
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
                Price(*(float(one[part]) / curve.seconds[0] for part in ("first", "each", "copied"))),
            )
            for name, one in costs["heads"].items()
        )
        return StepCosts(str(found["shape"]), curve, heads)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{file} is no report of bench step with a head",
            hint=f"make one: bench step --shape llama-3.1-8b --acceptance 0.8,0.7 --json > {file}",
        ) from None


class SimulatedHead:
    """Drafts the recorded text, right as often as said: a chain, as :class:`~ipex_lookahead.drafting.heads.HeadChain`.

    Args:
        text: prompt and answer.
        acceptance: how often the 1st, 2nd, ... token is right where those before it are; no more are drafted. A token
            behind copied ones, which the head has read without the target's features, is as deep as if these were its.
        price: in forwards of one row.
        record: of what came true, which goes on here.
        seed: of the luck.

    Attributes:
        price, record, most: as given, and tokens that are drafted at most.
        spent: forwards of one row that drafting has taken.
    """

    wants = ARGMAX

    def __init__(
        self, text: Sequence[int], acceptance: Sequence[float], price: Price, record: Record, seed: int = 0
    ) -> None:
        self._text = [*text]
        self._acceptance = acceptance
        self.price, self.record, self.most = price, record, len(acceptance)
        self._chain: tuple[Draft, list[int]] = Draft(), []
        drawn = np.random.default_rng(seed).random((len(self._text), len(acceptance)))
        self._right = drawn < np.asarray(acceptance, np.float64)
        self.spent = 0.0

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start behind the prompt."""
        self._at = len(prompt)

    def propose(self, budget: int) -> Draft:
        """A chain of at most ``budget`` tokens."""
        return self.propose_after((), budget)

    def propose_after(self, copied: Sequence[int], budget: int, min_chance: float = 0.0) -> Draft:
        """Return a chain after ``copied`` tokens; it ends when its probability falls below ``min_chance``."""
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
        self.spent += self.price.of(len(tokens), first)
        draft = Draft(tokens, range(-1, len(tokens) - 1), probs=probs)
        self._chain = draft, [*copied]
        return draft

    def observe(self, outcome: Outcome) -> None:
        """Count what of the last chain was right, and go on behind what was emitted."""
        (draft, copied), self._chain = self._chain, (Draft(), [])
        if copied == [*outcome.emitted[: len(copied)]]:
            self.record.observe(draft.tokens, draft.probs, outcome.emitted[len(copied) :])
        self._at += len(outcome.emitted)

    def _other(self, place: int) -> int:
        """A token that does not follow there."""
        return self._text[place] ^ 1 if place < len(self._text) else 0
