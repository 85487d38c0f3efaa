"""The controller that drafts where it pays: it maximizes R(D) of :mod:`.objective` in every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from ipex_lookahead.controller.acceptance import ALLOWED_LOSS, Acceptance, Backoff, Expected, SourceRates
from ipex_lookahead.controller.base import Controller
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.controller.objective import WORTH, best_chain, best_count, best_first, step_seconds
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.heads.joined import SOURCE, HeadPlan

WORTH_BEHIND = 1.25
"""``WORTH`` while drafting has cost more than it brought. 1.5 and 2 cost 1 and 2 % on greedy answers."""
ACCOUNT_WEIGHT = 0.01
"""Weight of a step in the account of all drafting: one step may lose ``ALLOWED_LOSS / ACCOUNT_WEIGHT``, half a
forward."""
RECENT_WEIGHT = 0.1
"""Weight of a step in the averages that decide pauses, prices and scratch rows. 0.05 replayed 0.1 % faster."""

GAIN_PRIOR = 0.03
"""Net gain per step of a new sequence or a repeated text, in forwards, before steps have shown it. With 0 the slowest
answer replays at 0.980 where drafting takes 40 microseconds, with 0.02 to 0.04 at 0.993."""
OVERHEAD = 2.5
"""Cost of a proposer without a price, in units of its own time: its outcome is observed, and the next forward starts
with colder caches (SmolLM2-135M, two cores of a Xeon: 31 to 45 microseconds of 103)."""
EXPENSIVE = 0.06
"""Share of a forward above which a token's drafting time limits the length of drafts. Free sources take 0.001 to 0.01,
a head 0.07 to 0.2, a second model 0.1 to 0.5."""
MIN_TOKENS = 4
"""Smallest request to a proposer without a price, tokens: one tile of rows."""
PROBE = 2
"""Tokens that test a source that does not pay: two right ones in a row end its pauses."""
SCRATCH_PRIOR = 1.6
"""Tokens of a step with all scratch rows before any was seen (Lookahead Decoding, arXiv 2402.02057)."""
LEARN_STEPS = 12
"""Steps that the cost curve learns from at once: a call after each costs 17 microseconds, with cold caches."""
NEVER_IDLE = ("recycling",)
"""Sources that learn from the target's rows alone: idle steps would teach them nothing (0.92 in replay)."""
HEAD_TRIES = 16
"""Drafts before a head is judged, and sequences of which one has a head that does not pay: a random head that read
every prompt took 5.5 % of the CPU time of a 135M, one that reads every 16th 0.3 %."""


def should_attach_head(rates: SourceRates, tests: int, skipped: int, curve: CostCurve, most: int) -> bool:
    """Return True if the next sequence should draft with the head, which then reads its prompt.

    Args:
        rates: of the head.
        tests: drafts of the head that were compared with the text.
        skipped: sequences in a row that did without it.
        curve: cost of the target's rows.
        most: longest chain.
    """
    if tests < HEAD_TRIES or skipped + 1 >= HEAD_TRIES:
        return True
    times = [curve(rows) for rows in range(1, most + 2)]
    return best_chain(rates, times, 1, most)[0] > 0


class AdaptiveController(Controller):
    """Drafts the number of rows that maximizes tokens per second.

    It learns the acceptance of each source and depth (:mod:`.acceptance`), the cost of rows (:mod:`.cost`), the price
    of drafted tokens, and what all drafting has gained. While drafting is behind, only drafts that promise
    ``WORTH_BEHIND`` are verified, and a source that brings less than it costs pauses (:class:`Backoff`). The sequences
    of a batch share the rows: the most likely tokens of all of them are taken first.

    Args:
        curve: the engine's cost curve.
        most: most rows that a sequence may draft in a step.
        source: name of drafts without ``sources``.
        known: rates that controllers share, by source: those of a head.
    """

    def __init__(
        self, curve: CostCurve, most: int, source: str = "", known: Iterable[tuple[str, SourceRates]] = ()
    ) -> None:
        table = Acceptance(source, known)
        super().__init__(most, table)
        self._curve = curve
        self._table, self._rates = table, table.rates(source)
        self._has_mixture = bool(curve.calibration.experts)
        self._source = source
        self._request = most  # tokens of a proposer without a price
        self._backoff = Backoff()
        # Averages of net gain per step, in forwards, and tokens of a step with scratch rows.
        self._account, self._recent = 0.0, GAIN_PRIOR
        self._scratch = SCRATCH_PRIOR
        self._idle_steps = 0
        self._live = 1
        # Of this step: tokens emitted, sequences observed, seconds of priced drafts; if drafts were requested, if
        # scratch rows are verified.
        self._emitted = self._observed = 0
        self._priced = 0.0
        self._drafting = self._whole = False
        self._times: list[float] = []
        self._length = 0
        self._steps: list[tuple[int, int, float, int]] = []
        self._learn_after = 1  # the first step may give the curve its unit

    def join(self) -> None:
        """Draft at once: nothing is known of the new sequence."""
        self._resume()
        self._idle_steps = 0

    def idle(self) -> bool:
        """Return True while drafting pauses and every earlier draft has been found right or wrong."""
        if not self._idle_steps:
            return False
        self._idle_steps -= 1
        return True

    def budget(self, live: int) -> int:
        """Return the largest profitable number of rows; for a source with a price, the best number."""
        self._live = live
        if self._backoff.pause:
            return 0
        self._drafting = True
        alone, each = self.times(live)[live - 1], self._rates.seconds
        if each <= EXPENSIVE * alone or self._source == SOURCE:
            return self._request
        count, _ = best_chain(self._rates, self.times(live + self._tokens), live, self._tokens, (), self._worth)
        self._backoff.judge(pays=count > 0, cost=live * each / alone)
        return count or min(PROBE, self._tokens)

    def plan(self, free: Draft, most: int) -> HeadPlan | None:
        """Decide what a head adds to the draft of the free sources of one sequence.

        Args:
            free: as proposed, with ``probs``; may be empty.
            most: tokens of the path and the chain together.

        Returns:
            The path to copy and the length of the chain behind it; None: the free sources draft alone.
        """
        rates, live = self._table.rates(SOURCE), self._live
        if rates.backoff.pause:
            rates.backoff.pause -= 1
            return None
        if rates.timed < 2:  # first tokens tell the price
            return HeadPlan([], 1)
        seen = self._table.expect(free)
        path = seen.most_likely_path()[: most - 1] if free.probs else []
        copied = [seen.survival[row] for row in path]
        times = self.times(live + max(most, len(seen.survival)))
        alone, worth = times[live - 1], self._worth
        chances = sorted(seen.survival, reverse=True)
        free_rate = best_count(1.0, chances, step_seconds(times, live, len(chances)), 1.0 / alone)[1]
        count, rate = best_chain(rates, times, live, most, (), worth)
        behind, behind_rate = best_chain(rates, times, live, most - len(path), copied, worth) if path else (0, 0.0)
        pays = count > 0 or behind > 0
        rates.backoff.judge(pays=pays, cost=live * rates.seconds / alone)
        if not pays:
            return HeadPlan([], 1)
        if max(rate, behind_rate) <= free_rate:
            return None
        if behind and behind_rate > rate:
            count, rate = behind, behind_rate
        else:
            path, copied = [], []
        # A chain goes on while all of it is right often enough that one more token pays for itself.
        each = rates.seconds + (times[live - 1 + count] - alone) / count
        sure = rates.chance(len(path)) * (copied[-1] if copied else 1.0)
        return HeadPlan(path, count, min(1.0, rate * each / sure))

    def select(self, sequences: Sequence[int], drafts: Sequence[Draft], others: int = 0) -> Sequence[Draft]:
        """Return for each sequence the profitable first tokens of its draft."""
        live = len(drafts) + others
        alone = self.times(live)[live - 1]
        expected = [self._table.expect(draft) for draft in drafts]
        # In a mixture of experts a draft may add no more than one forward, or than drafting has gained.
        longest = alone * (1.0 + max(self._allowance, 1.0)) if self._has_mixture else inf
        least = self._worth * live / alone
        counts, rate = self._counts(expected, live, least, longest)
        proposed = sum([len(draft.tokens) for draft in drafts])
        chosen: Sequence[Draft] = drafts
        if any(draft.scratch for draft in drafts):
            whole = self.times(live + proposed)[live + proposed - 1]
            rate = rate if any(counts) else WORTH * live / alone
            self._whole = (self._scratch * len(drafts) + others) / whole > rate and whole <= longest
        if not self._whole:
            chosen = [draft.first(count) for draft, count in zip(drafts, counts, strict=True)]
        for number, draft, verified, seen in zip(sequences, drafts, chosen, expected, strict=True):
            waiting = self._expected.get(number)
            if waiting is None or not waiting.open or verified.tokens:
                self._expected[number] = seen
            if draft.tokens and (draft.seconds or SOURCE in draft.sources):
                self._follow_price(draft, alone)
        if any(draft.probs for draft in drafts):
            self._request = min(self._tokens, max(MIN_TOKENS, 2 * max(counts), self._request - 1))
        return chosen

    @property
    def _allowance(self) -> float:
        """Forwards that drafting may lose in the next step."""
        return (self._account + ALLOWED_LOSS) / ACCOUNT_WEIGHT

    @property
    def _worth(self) -> float:
        """Smallest ratio of a draft's R to that of no draft."""
        return WORTH_BEHIND if self._allowance < 0.0 else WORTH

    def _counts(self, expected: Sequence[Expected], live: int, least: float, longest: float) -> tuple[list[int], float]:
        """Return the profitable number of tokens of each draft, and R with them; else zeros and ``least``."""
        times = self.times(live + sum([len(seen.survival) for seen in expected]))[live - 1 :]
        if len(expected) == 1:
            count, rate = best_count(live, expected[0].survival, times, least, longest)
            return [count], rate
        order = best_first(expected)
        best, rate = best_count(live, [survival for survival, _ in order], times, least, longest)
        places = [place for _, place in order[:best]]
        return [places.count(place) for place in range(len(expected))], rate

    def _follow_price(self, draft: Draft, alone: float) -> None:
        """Learn the price of a drafted token; ``alone`` is a forward without drafts, seconds."""
        source = draft.sources[-1] if draft.sources else self._source
        tokens = draft.sources.count(source) if draft.sources else len(draft.tokens)
        rates = self._table.rates(source)
        rates.follow_price(draft.seconds / tokens, RECENT_WEIGHT)
        if source != SOURCE:
            self._rates = rates
        if source == SOURCE or rates.seconds > EXPENSIVE * alone:
            self._priced += draft.seconds

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Learn which of the proposed tokens were right, verified or not."""
        self._emitted += len(outcome.emitted)
        self._observed += 1
        super().observe(sequence, outcome)
        if self._backoff.pause:
            seen = self._expected.get(sequence)
            if seen is not None and seen.right >= 2:  # the text is being repeated
                self._resume()
                seen.right = 0

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """Learn what rows and drafts cost, and what drafting brings."""
        backoff, live, emitted = self._backoff, self._observed or 1, self._emitted
        drafting, whole, priced = self._drafting, self._whole, self._priced
        self._emitted, self._observed, self._priced, self._drafting, self._whole = 0, 0, 0.0, False, False
        if backoff.pause and not drafting:
            backoff.pause -= 1
            self._account -= ACCOUNT_WEIGHT * self._account
            if backoff.pause:  # a draft is still open; one such step is enough to learn what the others take
                self._pause_all()
                return
        else:
            alone = self.times(live)[live - 1]
            took = self._curve(rows, length, experts) if experts else self.times(rows)[rows - 1]
            unpriced = min(proposing - priced, EXPENSIVE * alone) if proposing > priced else 0.0
            spent = (priced + OVERHEAD * unpriced) / alone
            if whole:  # windows need steps before they bring a draft, so only what comes of them is judged
                self._scratch += RECENT_WEIGHT * (emitted / live - spent - self._scratch)
            else:
                net = emitted / live - took / alone - spent
                self._account += ACCOUNT_WEIGHT * (net - self._account)
                if not priced:
                    self._recent += RECENT_WEIGHT * (net - self._recent)
                    backoff.judge(pays=self._recent >= 0.0, cost=spent)
        self._learn(rows, length, seconds, experts, at_once=self._has_mixture and rows > live)
        if backoff.pause:
            self._pause_all()

    def times(self, rows: int) -> Sequence[float]:
        """Return T of 1, 2, ... at least ``rows`` rows, seconds, as it was when the curve last learned."""
        times = self._times
        while len(times) < rows:
            times.append(self._curve(len(times) + 1, self._length))
        return times

    def _learn(self, rows: int, length: int, seconds: float, experts: int, *, at_once: bool) -> None:
        """Collect a forward for the curve. A draft in a mixture is learned before the next one is chosen."""
        self._steps.append((rows, length, seconds, experts))
        if len(self._steps) < self._learn_after and not at_once:
            return
        for step in self._steps:
            self._curve.timed(*step)
        self._steps.clear()
        self._learn_after, self._length, self._times = LEARN_STEPS, length, []

    def _resume(self) -> None:
        self._backoff.resume()
        self._recent = max(self._recent, GAIN_PRIOR)

    def _pause_all(self) -> None:
        """Make the steps of a pause idle once every draft has been found right or wrong."""
        if self._source not in NEVER_IDLE and not any(seen.open for seen in self._expected.values()):
            self._idle_steps, self._backoff.pause = self._backoff.pause, 0
