"""How many rows a step may spend on a draft."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any, Protocol

from ipex_lookahead.decoding.acceptance import Acceptance, Expected
from ipex_lookahead.decoding.cost import CostCurve
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome

WORTH = 1.02
"""A draft must promise at least this much more speed than none: estimates err."""
WORTH_BEHIND = 1.25
ALLOWED_LOSS, FIRST_LOSS = 0.008, 0.75
"""Drafting may be behind by this share of all time, and so many forwards beside; then it must promise
``WORTH_BEHIND``."""
DEAR = 0.06
"""A proposer whose time for a token is above this share of a forward is asked for no more than it can earn back."""
DEAR_FADE = 0.9
"""What a test leaves of the counts of a dear proposer: it is tested seldom, so the last few must tell."""
FIRST_PAUSE, LONGEST_PAUSE = 4, 64
"""Steps that a dear proposer is left alone after it promised no gain; twice as many each time."""
WHOLE_PRIOR, WHOLE_FOLLOW = 1.6, 0.05
"""Tokens a step with all scratch rows before any was seen (Lookahead Decoding, arXiv 2402.02057), and the weight of a
new one."""
LEAST_REACH, MOST_REACH = 4, 16
"""Rows that are asked for at least, of a proposer that puts the likeliest first, and where less begins; else twice as
many as were taken lately, so that no time is spent on rows that are never taken."""
WINDOW_PRIOR, WINDOW_FOLLOW = 0.07, 0.02
"""Tokens a step that a proposer's window is thought to bring (see ``drafting.auto``), and the weight of a new count."""
ACCOUNT_STEPS = 12
"""Steps after which costs and gains are brought up to date."""
ASKING = 2.5
"""What a proposer costs that is asked, in units of its own time: what comes of it is observed, and all of that leaves
the next forward colder caches (SmolLM2-135M, two cores of a Xeon: 31 to 45 microseconds of 103)."""
BROUGHT_PRIOR, BROUGHT_FOLLOW = 0.1, 0.1
"""What asking is thought to bring a step before it was tried, in forwards of one row, and the weight of a new step."""
LONGEST_DOZE = 8
"""Steps at most that a proposer is not asked because asking has brought less than it costs; 1, 2, 4, 8 in turn. Two
tokens in a row that would have been right end it."""


class Controller(Protocol):
    """Decides the budget of each sequence at each step, from what it has seen. It cannot change the output."""

    def budget(self, sequence: int, length: int) -> int:
        """Most rows that sequence number ``sequence``, ``length`` tokens long, may draft in this step."""
        ...

    def select(
        self, sequences: Sequence[int], drafts: Sequence[Draft], length: int, beside: int = 0
    ) -> Sequence[Draft]:
        """For each of its sequences how much of the draft to verify: ``Draft.first(n)``, or all of it.

        Called only where there is a draft at all; ``length`` is that of the longest sequence, ``beside`` the number of
        rows that the forward has for others, who emit a token for each.
        """
        ...

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """What verification made of that sequence's draft, an empty one included."""
        ...

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """What a forward of ``rows`` rows took, the longest of its sequences being ``length`` tokens long.

        ``proposing`` is what ``budget``, ``propose`` and ``select`` took before it, seconds; ``experts`` how many of a
        mixture it read. ``seconds`` is 0 where others shared it: that tells nothing of what rows cost.
        """
        ...

    def leave(self, sequence: int) -> None:
        """That sequence has ended, or pauses: its number may be another's."""
        ...


class FixedBudget:
    """The same budget at every step."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def budget(self, sequence: int, length: int) -> int:
        """Always the number given."""
        return self._tokens

    def select(
        self, sequences: Sequence[int], drafts: Sequence[Draft], length: int, beside: int = 0
    ) -> Sequence[Draft]:
        """All of every draft."""
        return drafts

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Nothing to learn."""

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """Nothing to learn."""

    def leave(self, sequence: int) -> None:
        """Nothing to forget."""


class AdaptiveBudget:
    """Drafts where it pays: the number of rows that maximises tokens a second, step by step.

    For a draft whose tokens come best first it takes the first n that maximise ``R(n) = E[tokens | n] / T(1 + n)``,
    where E is one and the sum of the tokens' survivals (:mod:`.acceptance`) and T the measured cost curve
    (:mod:`.cost`); every n is tried, since T has the steps of the kernels' tiles. Where the best R is below
    ``WORTH`` times that of no draft, none is verified. Acceptance is learned from drafts that were not verified too, so
    a draft source that becomes good is noticed without probing it; only a proposer whose own time counts (a second
    model) is left alone for a growing number of steps, then tried again. One that costs little dozes for a few steps
    where asking it brings less still: on a text that repeats nothing the questions would be all there is.

    The sum of what drafting has gained and lost is kept: while it is behind by more than ``ALLOWED_LOSS`` of all the
    time spent, only drafts that look very good are verified. In a mixture of experts one wrong draft may cost as much
    as several tokens, for it reads experts that no token needed: there a draft may add no more to a step than one
    forward, or than drafting has gained.

    The sequences of a batch share the rows: the likeliest tokens of all of them are taken first.

    A proposer that can add rows which only bring drafts for later steps (``widen``) is asked to where what these have
    brought so far, a step, is worth more than the rows.

    Args:
        curve: the engine's cost curve.
        most: most rows a sequence may draft in a step.
        source: name of drafts that carry no sources of their own.
        proposers: those of the sequences, by number.
        widen: ask those that have ``widen`` to use it; for engines that take trees.
        in_step: whether the sequences advance in lockstep, as far in a step as all their drafts are right; then a
            depth is worth its rows only where it is likely for all of them at once.

    Reference: the objective is that of SmartSpec (Liu et al., arXiv 2406.14066) and Sequoia (Chen et al., arXiv
    2402.12374), for measured T and best-first trees.
    """

    def __init__(
        self,
        curve: CostCurve,
        most: int,
        source: str = "",
        proposers: Sequence[Proposer | None] = (),
        *,
        widen: bool = False,
        in_step: bool = False,
    ) -> None:
        self._curve = curve
        self._in_step = in_step
        self._most = self._reach = most
        self._acceptance = Acceptance(source)
        self._widen = widen
        self._windows: dict[int, Any] = {}
        self._window_rows = 0
        self._expected: dict[int, Expected] = {}
        self._whole = WHOLE_PRIOR
        self._whole_chosen = False
        self._window_gain = WINDOW_PRIOR
        self._times = [curve(n) for n in range(1, most + 2)]
        self._widening = False
        self._steps: list[tuple[int, int, float, float, int, int, int, int]] = []
        self._account_after = 1  # the first step may give the curve its unit
        self._careful = bool(curve.calibration.experts)
        self._dearest = inf  # seconds that the next step may take
        self._emitted = self._taking_part = 0
        self._asked = self._dear = False
        self._brought, self._asking = BROUGHT_PRIOR, 0.0
        self._doze, self._next_doze = 0, 1
        self._spent = self._gained = 0.0
        # Of the proposer itself: seconds a token, tokens proposed in this step, and how often each depth was right.
        self._token_seconds = 0.0
        self._proposed = 0
        self._right = [[4 * 0.7, 4.0] for _ in range(most)]
        self._pause = 0
        self._next_pause = FIRST_PAUSE
        for number, proposer in enumerate(proposers):
            self.join(number, proposer)

    def join(self, sequence: int, proposer: Proposer | None) -> None:
        """A sequence of that number comes, with its proposer."""
        self._brought, self._doze, self._next_doze = max(self._brought, BROUGHT_PRIOR), 0, 1
        if self._widen and hasattr(proposer, "widen"):
            self._windows[sequence] = proposer
            self._window_rows = max(self._window_rows, self._windows[sequence].window_rows)
            self._widening = self._may_widen(0)

    def leave(self, sequence: int) -> None:
        """Forget a sequence; what its drafts have taught stays."""
        self._windows.pop(sequence, None)
        self._expected.pop(sequence, None)

    def budget(self, sequence: int, length: int) -> int:
        """Most rows to propose: all that are allowed, unless proposing itself takes time that counts."""
        if self._pause or self._doze:
            return 0
        self._asked = True
        alone = self._time(1, length)
        if self._token_seconds <= DEAR * alone:
            return self._most if self._widening else self._reach
        best, worth, expected, survival = 0, WORTH / alone, 1.0, 1.0
        for n in range(1, self._most + 1):
            right, tested = self._right[n - 1]
            survival *= right / tested
            expected += survival
            rate = expected / (self._time(1 + n, length) + n * self._token_seconds)
            if rate > worth:
                best, worth = n, rate
        if best:
            self._next_pause = FIRST_PAUSE
            return best
        self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)
        return min(self._most, 2)  # this once, to learn; then the pause

    def select(
        self, sequences: Sequence[int], drafts: Sequence[Draft], length: int, beside: int = 0
    ) -> Sequence[Draft]:
        """For each sequence the first tokens of its draft that are worth their rows."""
        live = len(drafts) + beside
        alone = self._time(live, length)
        room = self._gained + ALLOWED_LOSS * self._spent + FIRST_LOSS * alone
        behind = room < 0.0
        self._dearest = alone + max(room, alone) if self._careful else inf
        worth = (WORTH_BEHIND if behind else WORTH) * live / alone
        self._whole_chosen = False
        if len(drafts) == 1:
            draft = drafts[0]
            seen = self._expect(draft)
            taken, worth = self._worth(seen.survival, live, length, worth)
            chosen = [draft.first(taken)]
            expected = [seen]
        else:
            expected = [self._expect(draft) for draft in drafts]
            if self._in_step:
                taken, worth = self._worth_in_step(expected, drafts, length, worth)
                chosen = [draft.first(taken) for draft in drafts]
            else:
                order = _best_first(expected)
                best, worth = self._worth([survival for survival, _ in order], live, length, worth)
                places = [place for _, place in order[:best]]
                chosen = [draft.first(places.count(place)) for place, draft in enumerate(drafts)]
                taken = max(map(places.count, range(len(drafts))))
        if drafts[0].probs:
            self._reach = min(self._most, max(LEAST_REACH, 2 * taken, min(self._reach - 1, MOST_REACH)))
        if any(draft.scratch for draft in drafts) if len(drafts) > 1 else drafts[0].scratch:
            # Scratch rows pay in later steps, which no survival says; what steps with all rows have emitted does.
            rows = live + sum(map(len, drafts))
            whole = self._time(rows, length)
            if (self._whole * len(drafts) + beside) / whole > worth and whole <= self._dearest:
                self._whole_chosen = True
                chosen = list(drafts)
        if self._widening and not behind and not beside:
            chosen = self._widened(sequences, drafts, chosen, worth, length)
        for place, number in enumerate(sequences):
            waiting = self._expected.get(number)
            if waiting is None or not waiting.open or chosen[place].tokens:
                self._expected[number] = expected[place]
        return chosen

    def _worth(self, survival: Sequence[float], live: int, length: int, worth: float) -> tuple[int, float]:
        """The number of tokens, best first, with the highest rate above ``worth``, and that rate; else 0, ``worth``."""
        tokens, best, times = float(live), 0, self._times
        while live + len(survival) > len(times):
            times.append(self._curve(len(times) + 1, length))
        rows = live
        for chance in survival:
            tokens += chance
            if times[rows] > self._dearest:
                break
            rate = tokens / times[rows]
            rows += 1
            if rate > worth:
                best, worth = rows - live, rate
        return best, worth

    def _worth_in_step(
        self, expected: Sequence[Expected], drafts: Sequence[Draft], length: int, worth: float
    ) -> tuple[int, float]:
        """As ``_worth``, for a number of tokens of each draft: a depth counts where every sequence comes that far."""
        live, best = len(drafts), 0
        most = max(len(seen.survival) for seen in expected)
        reached: list[list[float]] = [[] for _ in drafts]  # by depth, the chance that one of the tokens taken is right
        depths: list[list[int]] = [[] for _ in drafts]
        rows = live
        for n in range(most):
            for seen, draft, chances, deep in zip(expected, drafts, reached, depths, strict=True):
                if n >= len(seen.survival):
                    continue
                rows += 1
                deep.append(0 if draft.parents[n] < 0 else deep[draft.parents[n]] + 1)
                if deep[n] == len(chances):
                    chances.append(0.0)
                chances[deep[n]] += seen.survival[n]
            tokens = 1.0 + sum(prod(min(1.0, chance) for chance in depth) for depth in zip(*reached, strict=False))
            took = self._time(rows, length)
            if took > self._dearest:
                break
            rate = live * tokens / took
            if rate > worth:
                best, worth = n + 1, rate
        return best, worth

    def _may_widen(self, length: int) -> bool:
        """Whether a window's rows are cheap enough to look closer: at least by themselves, beside one row."""
        rows = self._window_rows
        return 0 < rows < self._most and self._time(rows + 1, length) <= (1.0 + self._window_gain) * self._times[0]

    def _widened(
        self, sequences: Sequence[int], drafts: Sequence[Draft], chosen: list[Draft], rate: float, length: int
    ) -> list[Draft]:
        """What was chosen of the drafts with a window each, where the tokens that windows bring are worth their rows.

        ``rate`` is that of the rows that were chosen, if any.
        """
        live = len(sequences)
        rows = live + sum(map(len, chosen))
        now, wide = self._time(rows, length), self._time(rows + live * self._window_rows, length)
        tokens = rate * now if rows > live else live
        if (tokens + live * self._window_gain) * now < WORTH * tokens * wide or wide > self._dearest:
            return chosen
        found = []
        for number, draft, taken in zip(sequences, drafts, chosen, strict=True):
            window = self._windows.get(number)
            # Without a proposal in this step its window does not know how many rows there is room for.
            found.append(window.widen(taken) if window is not None and draft.tokens else taken)
        return found

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Learn which of the proposed tokens were right, verified or not."""
        emitted = outcome.emitted
        window = self._windows.get(sequence) if self._widening else None
        if window is not None and outcome.draft.sources:
            brought = sum(outcome.draft.sources[row] == window.window_source for row in outcome.accepted)
            self._window_gain += WINDOW_FOLLOW * (brought - self._window_gain)
        self._emitted += len(emitted)
        self._taking_part += 1
        seen = self._expected.get(sequence)
        if seen is not None and seen.open:
            known = len(seen.tried)
            seen.walk(emitted)
            for depth, right in enumerate(seen.tried[known : self._most], known):
                cell = self._right[depth]
                cell[0] = cell[0] * DEAR_FADE + (1.0 if right else 0.0)
                cell[1] = cell[1] * DEAR_FADE + 1.0
            if self._pause and seen.tried and seen.tried[-1]:
                self._pause, self._next_pause = min(self._pause, FIRST_PAUSE), FIRST_PAUSE  # it may have become good
            if self._doze and len(seen.tried) > 1 and seen.tried[-1] and seen.tried[-2]:
                self._doze, self._next_doze = 0, 1  # the text is being repeated
                self._brought = max(self._brought, self._asking)

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """Correct the cost curve, and keep account of what drafting brings."""
        emitted, live, proposed = self._emitted, self._taking_part or 1, self._proposed
        if self._doze > 1:  # one such step in a row is enough to know what the others take
            self._doze -= 1
            self._spent += self._time(rows, length)
            self._emitted = self._taking_part = 0
            return
        self._steps.append((rows, length, seconds, proposing, proposed, emitted, live, experts))
        self._emitted = self._taking_part = self._proposed = 0
        if self._whole_chosen:
            self._whole += WHOLE_FOLLOW * (emitted / live - self._whole)
            self._whole_chosen = False
        if self._pause and not proposed:
            self._pause -= 1
        if self._asked and not self._dear:
            self._weigh(emitted / live, rows, live, length, proposing, experts)
        elif self._doze:
            self._doze -= 1
        self._asked = False
        if len(self._steps) >= self._account_after or (self._careful and rows > live):
            self._account()

    def _weigh(self, emitted: float, rows: int, live: int, length: int, proposing: float, experts: int) -> None:
        """Whether it pays to ask at all: on a text that repeats nothing only the questions would be left."""
        took = self._curve(rows, length, experts) if experts else self._time(rows, length)
        alone = self._time(live, length)
        # Once in a while another process has the core; that is not the proposer's doing.
        asking = ASKING * min(proposing, DEAR * alone) / alone
        self._brought += BROUGHT_FOLLOW * (emitted - took / alone - self._brought)
        self._asking += BROUGHT_FOLLOW * (asking - self._asking) if self._asking else asking
        if max(self._brought, 0.0) < self._asking:
            self._doze, self._next_doze = self._next_doze, min(2 * self._next_doze, LONGEST_DOZE)
        else:
            self._next_doze = 1

    def _account(self) -> None:
        """Go through the last steps at once, which costs a fraction of going through each when caches are cold."""
        curve = self._curve
        for rows, length, seconds, proposing, proposed, emitted, live, experts in self._steps:
            curve.timed(rows, length, seconds, experts)
            if proposed:
                each, known = proposing / proposed, self._token_seconds
                # Once in a while another process has the core; that is not the proposer's doing.
                self._token_seconds += 0.2 * (min(each, 3.0 * known) - known) if known else each
            alone = self._time(live, length)
            took = curve(rows, length, experts) if experts else self._time(rows, length)
            self._spent += took
            asking = max(self._token_seconds * proposed, ASKING * min(proposing, DEAR * alone)) if proposed else 0.0
            self._gained += alone * (emitted / live) - took - asking
        length = self._steps[-1][1]
        # What a dear proposer takes must be known at every step.
        self._dear = self._token_seconds > DEAR * curve(1, length)
        self._account_after = 1 if self._dear else ACCOUNT_STEPS
        self._times = [curve(n, length) for n in range(1, self._reach + 2)]
        self._widening = self._may_widen(length)
        self._steps.clear()

    def _expect(self, draft: Draft) -> Expected:
        self._proposed += len(draft.tokens)
        return self._acceptance.expect(draft)

    def _time(self, rows: int, length: int) -> float:
        """The cost curve at ``rows``, as it was at the last account."""
        times = self._times
        return times[rows - 1] if rows <= len(times) else self._curve(rows, length)


def _best_first(expected: Sequence[Expected]) -> list[tuple[float, int]]:
    """(survival, sequence) of all tokens, likeliest first, those of a sequence in their own order."""
    order = []
    for place, seen in enumerate(expected):
        least = 1.0
        for row, survival in enumerate(seen.survival):
            least = min(least, survival)
            order.append((-least, row, place, survival))
    order.sort()
    return [(survival, place) for _, _, place, survival in order]
