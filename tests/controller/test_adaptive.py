"""The adaptive budget: it drafts where it pays, not where it does not, and never changes a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.controller import AdaptiveController
from ipex_lookahead.controller.acceptance import ALLOWED_LOSS
from ipex_lookahead.controller.adaptive import MIN_TOKENS, OVERHEAD
from ipex_lookahead.controller.calibration import ROWS, Calibration
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.drafting.draft import Draft, Outcome

TILES = Calibration((1, 2, 3, 4, 5, 8, 9, 16), (1.0, 1.05, 1.1, 1.15, 1.7, 1.75, 2.4, 3.2))
"""Cheap up to 4 rows, then a step, and another after 8."""
STEEP = Calibration((1, 2, 16), (1.0, 2.0, 16.0))
"""Every row costs as much as the first: no draft can pay."""


def chosen_of(controller: AdaptiveController, drafts: Sequence[Draft]) -> Sequence[Draft]:
    """What the controller takes of the drafts of sequences 0, 1, 2, ..."""
    return controller.select(range(len(drafts)), drafts)


class Play:
    """A controller at work on a text that a proposer knows with some skill; the clock is the calibration itself."""

    def __init__(self, calibration: Calibration, most: int, *, sequences: int = 1, **options: Any) -> None:
        self.curve = CostCurve(calibration)
        self.controller = AdaptiveController(self.curve, most, **options)
        self.sequences = sequences
        self.rows: list[int] = []
        self.emitted = self.seconds = self.plain_seconds = 0.0
        self.true_cost = CostCurve(calibration)
        self.proposals = self.idle = 0

    def step(self, drafts: list[Draft], right: list[int], proposing: float = 0.0, price: float = 0.0) -> list[Draft]:
        """``right`` tokens of each draft's first path are right; a token takes ``price``."""
        idle = self.controller.idle()
        self.idle += idle
        budgets = [0 if idle else self.controller.budget(self.sequences) for _ in range(self.sequences)]
        self.proposals += any(budgets)
        drafts = [
            draft if budget >= len(draft) else draft.first(budget)
            for draft, budget in zip(drafts, budgets, strict=True)
        ]
        if price:
            drafts = [replace(draft, seconds=price * len(draft)) for draft in drafts]
            proposing += sum(draft.seconds for draft in drafts)
        chosen = list(chosen_of(self.controller, drafts)) if any(map(len, drafts)) else drafts
        emitted = 0
        for number, (full, draft) in enumerate(zip(drafts, chosen, strict=True)):
            accepted = list(range(min(right[number], len(draft) - draft.scratch)))
            known = [full.tokens[i] for i in range(min(right[number], len(full)))]
            tokens = [*(draft.tokens[i] for i in accepted), *known[len(accepted) : len(accepted) + 1]]
            if len(tokens) == len(accepted):
                tokens.append(-9)
            emitted += len(tokens)
            if not idle:
                self.controller.observe(number, Outcome(draft, accepted, tokens))
        rows = self.sequences + sum(map(len, chosen))
        took = self.true_cost(rows, 100)
        if not idle:
            self.controller.timed(rows, 100, took, proposing if any(budgets) else 0.0)
        self.rows.append(rows - self.sequences)
        self.emitted += emitted
        self.seconds += took + (proposing if any(budgets) else 0.0)
        self.plain_seconds += emitted / self.sequences * self.true_cost(self.sequences, 100)
        return chosen

    @property
    def ratio(self) -> float:
        """Speed over that of plain decoding."""
        return self.plain_seconds / self.seconds


def chain(length: int, prob: float | None = None) -> Draft:
    return Draft(range(length), range(-1, length - 1), probs=() if prob is None else [prob] * length)


def test_what_is_always_right_is_drafted_in_full() -> None:
    play = Play(TILES, 8)
    for _ in range(50):
        play.step([chain(8)], [8])
    assert play.rows[-20:] == [7] * 20, "8 rows with the last token: the ninth would cost a tile"
    assert play.ratio > 3


def test_what_is_never_right_is_soon_left_out() -> None:
    play = Play(TILES, 8)
    for _ in range(300):
        play.step([chain(8)], [0])
    assert sum(play.rows[:20]) > 0, "it was tried"
    assert sum(play.rows[40:]) == 0
    assert play.ratio > 0.98


@pytest.mark.parametrize("prob", [None, 0.2, 0.9])
@pytest.mark.parametrize("right", [0.02, 0.1, 0.2, 0.5, 0.9])
@pytest.mark.rotating(8)
def test_it_is_never_slower(prob: float | None, right: float) -> None:
    rng = np.random.default_rng(3)
    play = Play(TILES, 8)
    for _ in range(256):
        play.step([chain(8, prob)], [int((rng.random(8) > right).argmax())])
    assert play.ratio > 0.98
    if right > 0.3:
        assert play.ratio > 1.2


def test_where_rows_cost_too_much_nothing_is_drafted() -> None:
    play = Play(STEEP, 8)
    for _ in range(100):
        play.step([chain(8)], [8])
    assert sum(play.rows) == 0


def test_a_source_that_becomes_good_is_noticed_without_probes() -> None:
    play = Play(TILES, 3)
    for _ in range(200):
        play.step([chain(3)], [0])
    assert sum(play.rows[-100:]) == 0
    for _ in range(40):
        play.step([chain(3)], [3])
    assert play.rows[-10:] == [3] * 10


def test_rows_stop_at_the_edge_of_a_tile() -> None:
    """Tokens of middling survival fill the tile that is paid for and do not begin the next."""
    play = Play(TILES, 8)
    chosen = chosen_of(play.controller, [Draft(range(8), [-1] * 8, probs=[0.12] * 8)])
    assert len(chosen[0]) == 3
    chosen = chosen_of(play.controller, [Draft(range(8), [-1] * 3 + [0] * 5, probs=[0.3] * 8)])
    assert len(chosen[0]) == 3


def test_a_batch_shares_the_rows() -> None:
    controller = AdaptiveController(CostCurve(TILES), 3)
    likely, unlikely = chain(3, 0.9), chain(3, 0.05)
    chosen = chosen_of(controller, [unlikely, likely])
    assert [len(d) for d in chosen] == [0, 2], "four rows in all: a tile"
    chosen = chosen_of(controller, [likely, likely])
    assert [len(d) for d in chosen] == [3, 3]
    both = chosen_of(controller, [Draft(), unlikely])
    assert [len(d) for d in both] == [0, 0]


def test_batches_learn_and_never_lose() -> None:
    play = Play(TILES, 3, sequences=2)
    for _ in range(200):
        play.step([chain(3, 0.6), chain(3, 0.6)], [0, 0])
    assert play.ratio > 0.98
    for _ in range(60):
        play.step([chain(3, 0.6), chain(3, 0.6)], [3, 3])
    assert sum(play.rows[-10:]) > 40


def test_an_expensive_proposer_is_left_alone_longer_and_longer() -> None:
    play = Play(TILES, 4)
    for _ in range(400):
        play.step([chain(4, 0.5)], [0], price=0.125)
    assert play.proposals < 60
    before = play.proposals
    for _ in range(128):
        play.step([chain(4, 0.5)], [0], price=0.125)
    assert 1 <= play.proposals - before <= 6, "it is tried again, seldom"
    for _ in range(256):
        play.step([chain(4, 0.9)], [4], price=0.025)
    assert sum(play.rows[-10:]) == 30, "and taken up again when it has become good"


def test_an_expensive_proposer_is_asked_for_no_more_than_pays() -> None:
    play = Play(TILES, 8)
    for _ in range(100):
        play.step([chain(8, 0.5)], [1], price=0.08)
    assert 0 < play.controller.budget(1) < 4


def test_a_price_is_that_of_the_sources_that_a_draft_names() -> None:
    controller = AdaptiveController(CostCurve(TILES), 8, "proposer")
    named = replace(chain(8, 0.5), sources=["mine"] * 8, seconds=8 * 0.3)
    for _ in range(60):
        controller.budget(1)
        controller.select([0, 1], [named, replace(Draft(), seconds=0.5)])
        controller.observe(0, Outcome(Draft(), [], [-9]))
        controller.timed(2, 10, 1.0, 2.4)
    assert controller.budget(1) < 8


@pytest.mark.parametrize("asking", [0.005, 0.015, 0.03])
@pytest.mark.parametrize("tiles", [TILES, STEEP])
def test_a_proposer_that_brings_nothing_is_seldom_asked(asking: float, tiles: Calibration) -> None:
    """Even one that costs little: what it takes itself, and as much again and a half for what it leaves behind."""
    play = Play(tiles, 8)
    for _ in range(128):
        play.step([chain(4, 0.3)], [0], proposing=asking)
    assert play.proposals < (64 if asking == 0.005 else 48)
    assert play.plain_seconds / (play.seconds + (OVERHEAD - 1) * asking * play.proposals) > 0.95
    for _ in range(200):
        play.step([chain(8, 0.3)], [8], proposing=asking)
    if tiles is TILES:
        assert sum(play.rows[-20:]) >= 60, "and taken up again when it has become good"


def test_a_proposer_that_costs_nothing_is_always_asked() -> None:
    play = Play(TILES, 8)
    for _ in range(100):
        play.step([chain(8, 0.3)], [0])
    assert play.proposals == 100


def test_a_text_that_is_being_repeated_wakes_it() -> None:
    """The last draft, though not verified, goes on being compared with what comes."""
    play = Play(STEEP, 8)
    for _ in range(100):
        play.step([chain(4, 0.3)], [0], proposing=0.03)
    asked = play.proposals
    while play.proposals == asked:
        play.step([chain(4, 0.3)], [1], proposing=0.03)
    assert sum(play.rows) == 0
    controller = play.controller
    for token, asked in ((1, False), (2, True)):
        assert not controller.idle(), "a draft waits to be seen right or wrong"
        assert (controller.budget(1) > 0) == asked
        controller.observe(0, Outcome(Draft(), [], [token]))


def test_while_drafting_pauses_most_steps_are_left_alone() -> None:
    play, rows = Play(STEEP, 8), Play(STEEP, 8, source="recycling")
    for one in (play, rows):
        for _ in range(300):
            one.step([chain(4, 0.3)], [0], proposing=0.03)
        assert one.proposals < 48
    assert play.idle > 200
    assert rows.idle == 0, "what learns from the target's rows alone would learn nothing of them"


def test_a_new_sequence_is_asked_at_once() -> None:
    play = Play(TILES, 8)
    for _ in range(200):
        play.step([chain(8, 0.3)], [0], proposing=0.03)
    asked = play.proposals
    while play.proposals == asked:
        play.step([chain(8, 0.3)], [0], proposing=0.03)
    assert play.controller.idle(), "drafting pauses,"
    assert play.controller.idle(), "for more steps than one"
    play.controller.join()
    assert not play.controller.idle()
    assert play.controller.budget(1) > 0


def test_scratch_rows_are_all_or_nothing() -> None:
    window = Draft(range(6), [-1] * 6, scratch=5, probs=[0.2] * 6)
    steep = AdaptiveController(CostCurve(STEEP), 8)
    assert chosen_of(steep, [window])[0].scratch == 0
    play = Play(Calibration((1, 8), (1.0, 1.2)), 8)
    assert play.step([window], [1])[0] is window
    for _ in range(200):
        play.step([window], [0])
    assert play.rows[-1] < 6, "steps with scratch rows that bring nothing are given up"


def test_drafts_are_judged_by_the_match_that_they_rest_on() -> None:
    play = Play(TILES, 3)
    for _ in range(40):
        play.step([Draft.chain(range(3), match=1)], [0])
        play.step([Draft.chain(range(3), match=5)], [3])
    assert play.rows[-2:] == [0, 3]


@pytest.mark.parametrize("seconds", [0.0, float("nan"), 1e-12, 1e12, -1.0])
def test_odd_clocks_do_no_harm(seconds: float) -> None:
    controller = AdaptiveController(CostCurve(), 5)
    for _ in range(100):
        budget = controller.budget(1)
        assert 0 <= budget <= 5
        (draft,) = chosen_of(controller, [chain(budget)])
        assert len(draft) <= budget
        controller.observe(0, Outcome(draft, [], [-1]))
        controller.timed(1 + len(draft), 10, seconds, seconds)


# ---- mixtures of experts ---------------------------------------------------------------------------------------------


class Mixture:
    """A model of 16 layers, each row to ``used`` of ``experts``. A row takes a second, ``dense`` of it without experts.

    ``touched`` is how many experts a step of so many rows reads where the text goes to ``among`` of a layer.
    """

    def __init__(self, used: int, experts: int, dense: float) -> None:
        self.used, self.experts, self.dense = used, experts, dense
        self.each = (1.0 - dense) / (16 * used)

    def touched(self, rows: int, among: float) -> int:
        return round(16 * among * (1.0 - (1.0 - self.used / among) ** rows))

    def seconds(self, rows: int, touched: int) -> float:
        return self.dense * (1.0 + 0.02 * (rows - 1)) + self.each * touched

    def calibration(self, among: float) -> Calibration:
        touched = tuple(self.touched(rows, among) for rows in ROWS)
        seconds = tuple(map(self.seconds, ROWS, touched))
        return Calibration(ROWS, seconds, 0.0, 0.0, touched, self.each, 16 * self.experts)

    def play(
        self, among: float, right: float, prob: float | None, *, seed: int = 0, calibrated: float | None = None
    ) -> float:
        """Speed over that of plain decoding, on a text whose drafted tokens are each right by that chance.

        ``calibrated`` is ``among`` for the rows of the calibration, if not all experts.
        """
        rng = np.random.default_rng(seed)
        controller = AdaptiveController(CostCurve(self.calibration(calibrated or self.experts)), 8)
        seconds = emitted = 0.0
        for _ in range(256):
            full = chain(controller.budget(1), prob)
            draft = chosen_of(controller, [full])[0] if full.tokens else full
            known = int(np.append(rng.random(len(full)) > right, True).argmax())
            accepted = list(range(min(known, len(draft))))
            tokens = [*accepted, len(accepted) if known > len(accepted) else -9]
            controller.observe(0, Outcome(draft, accepted, tokens))
            rows = 1 + len(draft)
            disturbed = rng.normal(1.0, 0.05) if rows > 1 else 1.0
            touched = max(16 * self.used, round(disturbed * self.touched(rows, among)))
            took = self.seconds(rows, touched) * rng.normal(1.0, 0.03)
            controller.timed(rows, 100, took, 0.0, touched)
            seconds += took
            emitted += len(tokens)
        return emitted / seconds


MIXTURES = [Mixture(2, 8, 0.2), Mixture(8, 128, 0.4), Mixture(4, 32, 0.35)]
"""Mixtral's, Qwen3-30B-A3B's and gpt-oss-20b's shares, roughly."""


@pytest.mark.parametrize("mixture", MIXTURES, ids=lambda m: f"{m.used} of {m.experts}")
@pytest.mark.parametrize("share", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("prob", [None, 0.2, 0.9])
@pytest.mark.rotating(14)
def test_on_a_mixture_it_is_never_slower(mixture: Mixture, share: float, prob: float | None) -> None:
    """Though a wrong draft costs several forwards, and a text needs more experts than the calibration did, or fewer."""
    among = max(1.2 * mixture.used, share * mixture.experts)
    for seed, right in enumerate((0.02, 0.2, 0.4, 0.6, 0.9)):
        for calibrated in (None, 1.1 * mixture.used):
            assert mixture.play(among, right, prob, seed=seed, calibrated=calibrated) > 0.98, (right, calibrated)


def test_on_a_mixture_it_drafts_more_where_rows_share_their_experts() -> None:
    mixture = MIXTURES[0]
    assert mixture.play(2.4, 0.9, None) > 2.5
    assert mixture.play(2.4, 0.9, None) > 1.3 * mixture.play(8, 0.9, None)
    assert mixture.play(8, 0.9, None) > 1.3


def test_a_first_sequence_without_a_draft_hides_no_other() -> None:
    """The request size follows the drafts that carry estimates, wherever in the batch they are."""
    requests = []
    for drafts in ([Draft(), chain(1, 0.1)], [chain(1, 0.1), Draft()]):
        controller = AdaptiveController(CostCurve(TILES), 32)
        controller.select([0, 1], drafts)
        requests.append(controller.budget(2))
    assert requests == [31, 31]


def test_a_request_is_twice_what_was_worth_its_rows_and_shrinks_by_one() -> None:
    controller = AdaptiveController(CostCurve(TILES), 32)
    assert controller.budget(1) == 32
    for _ in range(40):
        controller.select([0], [chain(8, 0.001)])
    assert controller.budget(1) == MIN_TOKENS
    controller.select([0], [chain(7, 0.98)])
    assert controller.budget(1) == 14


def test_an_allowance_is_lost_once() -> None:
    """Where nothing is ever right, drafting loses half a forward at first, and then the allowed share."""
    play = Play(Calibration((1, 2), (1.0, 1.2)), 8)
    for _ in range(2000):
        play.step([chain(1, 0.9)], [0])
    lost = play.seconds - play.plain_seconds
    assert 0.5 <= lost < 2000 * ALLOWED_LOSS + 1.0
