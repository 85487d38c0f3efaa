"""The draft model's bookkeeping: what it is fed, what stays in its cache, where it stops."""

from __future__ import annotations

import numpy as np
import pytest

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.draft_model import DraftModel, most_likely, probability
from tests.support.scripted_engine import ScriptedEngine, markov


def counting(vocab_size: int = 30, max_context: int = 100, sure: float = 50.0) -> ScriptedEngine:
    """After token t comes t + 1."""

    def logits(tokens: list[int]) -> np.ndarray:
        row = np.zeros(vocab_size, np.float32)
        row[(tokens[-1] + 1) % vocab_size] = sure
        return row

    return ScriptedEngine(logits, vocab_size, max_context)


def fed(engine: ScriptedEngine) -> list[int]:
    """Rows of each forward since the last call."""
    rows = [sum(counts) for counts, _, _ in engine.batches]
    engine.batches.clear()
    return rows


def test_the_worked_example() -> None:
    engine = counting()
    proposer = DraftModel(engine)
    proposer.begin([5, 6])
    assert fed(engine) == [1]
    draft = proposer.propose(2)
    assert (list(draft.tokens), list(draft.parents)) == ([7, 8], [-1, 0])
    assert draft.probs == pytest.approx([1, 1])
    assert fed(engine) == [1, 1]
    proposer.observe(Outcome(draft, [0], [7, 4]))
    assert list(proposer.propose(2).tokens) == [5, 6]
    assert fed(engine) == [1, 1]
    proposer.observe(Outcome(Draft.chain([5, 6]), [0, 1], [5, 6, 1]))
    assert list(proposer.propose(3).tokens) == [2, 3, 4]
    assert fed(engine) == [2, 1, 1]


def test_a_bonus_token_that_was_drafted_but_not_verified_is_fed_again() -> None:
    """The controller cuts the draft after 7; the target's own 8 is the draft's next token, whose row is there."""
    engine = counting()
    proposer = DraftModel(engine)
    proposer.begin([5, 6])
    draft = proposer.propose(4)
    fed(engine)
    proposer.observe(Outcome(draft.first(1), [0], [7, 8]))
    assert list(proposer.propose(2).tokens) == [9, 10]
    assert fed(engine) == [1, 1]


def test_steps_without_a_draft_are_caught_up_in_one_forward() -> None:
    engine = counting()
    proposer = DraftModel(engine)
    proposer.begin([5])
    proposer.propose(1)
    fed(engine)
    for token in (9, 3, 4):
        assert proposer.propose(0) == Draft()
        proposer.observe(Outcome(Draft(), [], [token]))
    assert fed(engine) == []
    assert list(proposer.propose(1).tokens) == [5]
    assert fed(engine) == [3]


def test_a_long_prompt_is_read_in_pieces_and_only_its_last_row_answers() -> None:
    engine = counting(max_context=2000)
    proposer = DraftModel(engine)
    proposer.begin([3] * 1100)
    assert list(proposer.propose(1).tokens) == [4]
    assert [(sum(counts), wanted, logits) for counts, wanted, logits in engine.batches] == [
        (512, 0, False),
        (512, 0, False),
        (75, 0, False),
        (1, 1, True),
    ]


def test_no_logits_are_asked_for_where_none_are_needed() -> None:
    engine = counting()
    proposer = DraftModel(engine, min_prob=0.0)
    proposer.begin([5])
    draft = proposer.propose(3)
    assert (list(draft.tokens), list(draft.probs)) == ([6, 7, 8], [])
    assert not any(logits for _, _, logits in engine.batches)


def test_an_unlikely_token_ends_the_draft() -> None:
    engine = counting(vocab_size=10, sure=np.log(9.0))  # 9 against 9 others of weight 1
    proposer = DraftModel(engine, min_prob=0.51)
    proposer.begin([5])
    assert proposer.propose(8).probs == pytest.approx([0.5])
    proposer = DraftModel(engine, min_prob=0.49)
    proposer.begin([5])
    assert proposer.propose(8).probs == pytest.approx([0.5] * 8)


def test_a_draft_has_its_least_tokens_however_unlikely() -> None:
    """ipex-llm's ``min_step_draft``; the budget, and an end token, go before it."""
    engine = counting(vocab_size=10, sure=np.log(9.0))
    for least, budget, drafted in ((1, 8, 1), (3, 8, 3), (8, 8, 8), (5, 2, 2)):
        proposer = DraftModel(engine, min_prob=0.51, min_tokens=least)
        proposer.begin([5])
        assert len(proposer.propose(budget).tokens) == drafted
    proposer = DraftModel(engine, min_prob=0.51, min_tokens=8, end_tokens=(7,))
    proposer.begin([5])
    assert list(proposer.propose(8).tokens) == [6, 7]


def test_an_end_token_ends_the_draft() -> None:
    proposer = DraftModel(counting(), end_tokens=(8, 20))
    proposer.begin([5])
    assert list(proposer.propose(8).tokens) == [6, 7, 8]


def test_a_choice_that_has_nothing_to_say_ends_the_draft() -> None:
    def choose(logits: np.ndarray, tokens: np.ndarray) -> tuple[int, float] | None:
        return None if len(tokens) == 4 else most_likely(logits, tokens)

    proposer = DraftModel(counting(), choose)
    proposer.begin([5, 6])
    assert list(proposer.propose(8).tokens) == [7, 8]
    proposer.begin([5, 6, 7, 8])
    assert proposer.propose(8) == Draft()
    proposer.observe(Outcome(Draft(), [], [9]))
    assert list(proposer.propose(2).tokens) == [10, 11]


def test_it_stops_where_its_context_ends() -> None:
    engine = counting(max_context=6)
    proposer = DraftModel(engine)
    proposer.begin([1, 2, 3])
    assert list(proposer.propose(8).tokens) == [4, 5, 6, 7]  # the rows of 1..6 fill the context
    proposer.observe(Outcome(Draft.chain([4, 5, 6, 7]), [0, 1], [4, 5, 9]))
    assert list(proposer.propose(8).tokens) == [10]
    proposer.observe(Outcome(Draft.chain([10]), [0], [10, 11]))
    assert proposer.propose(8) == Draft()
    proposer.observe(Outcome(Draft(), [], [12]))
    assert proposer.propose(8) == Draft()
    fed(engine)
    proposer.begin([1] * 7)
    assert proposer.propose(8) == Draft()
    assert fed(engine) == []


def test_begin_forgets_the_sequence_before() -> None:
    engine = counting()
    proposer = DraftModel(engine)
    proposer.begin([5, 6])
    proposer.propose(4)
    proposer.begin([20])
    fed(engine)
    assert list(proposer.propose(2).tokens) == [21, 22]
    assert fed(engine) == [1, 1]


def test_the_threshold_follows_the_acceptance() -> None:
    """ipex-llm's rule: m = 0.5 m + 0.5 accepted; th = 0.9 th + 0.1 (th +- 0.01)."""
    proposer = DraftModel(counting(), min_prob=0.5, adapt=True)
    proposer.begin([5])
    draft = proposer.propose(4)
    proposer.observe(Outcome(draft, [0, 1, 2, 3], [6, 7, 8, 9, 10]))
    assert proposer.min_prob == pytest.approx(0.499)
    draft = proposer.propose(4)
    proposer.observe(Outcome(draft, [0], [11, 1]))  # m = 0.5 + 0.125 = 0.625
    assert proposer.min_prob == pytest.approx(0.5)
    draft = proposer.propose(4)
    proposer.observe(Outcome(draft, [0, 1, 2, 3], [2, 3, 4, 5, 6]))  # m = 0.8125, still below 0.9
    assert proposer.min_prob == pytest.approx(0.501)
    proposer.observe(Outcome(Draft(), [], [7]))  # nothing was drafted, nothing is learnt
    assert proposer.min_prob == pytest.approx(0.501)
    proposer.begin([5])
    assert proposer.min_prob == 0.5


def test_cache_and_tokens_agree_after_any_history() -> None:
    """Whatever is accepted, cut or skipped, the draft is what a fresh draft model says of the same tokens."""
    rng = np.random.default_rng(0)
    engine = markov(vocab_size=12, order=3, seed=1)
    for _ in range(30):
        proposer = DraftModel(engine, min_prob=float(rng.choice([0.0, 0.3, 0.6])))
        tokens = rng.integers(0, 12, 5).tolist()
        proposer.begin(tokens)
        for _ in range(12):
            draft = proposer.propose(int(rng.integers(0, 7)))
            fresh = DraftModel(engine, min_prob=proposer.min_prob)
            fresh.begin(tokens)
            assert fresh.propose(len(draft)) == draft
            shown = draft.first(int(rng.integers(0, len(draft) + 1)))
            count = int(rng.integers(0, len(shown) + 1))
            bonus = int(draft.tokens[count]) if count < len(draft) and rng.random() < 0.5 else int(rng.integers(0, 12))
            emitted = [*shown.tokens[:count], bonus]
            proposer.observe(Outcome(shown, list(range(count)), emitted))
            tokens += emitted


@pytest.mark.parametrize("shift", [0.0, 1000.0, -1000.0])
def test_probability_is_the_softmax(shift: float) -> None:
    logits = np.array([0.5, -np.inf, 2.0, 1.0], np.float32) + np.float32(shift)
    weights = np.exp([0.5, -np.inf, 2.0, 1.0])
    for token in range(4):
        assert probability(logits, token) == pytest.approx(weights[token] / weights.sum(), abs=1e-4)
    assert most_likely(np.array([1, 3, 3], np.float32), np.zeros(0, np.int64)) == (1, pytest.approx(0.468, abs=1e-3))
