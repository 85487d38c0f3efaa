from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting import Draft, Jacobi, Outcome, make_proposer
from ipex_lookahead.drafting.draft import Draft as FlatTree
from ipex_lookahead.drafting.window import Window
from ipex_lookahead.errors import InputError


def path(draft: FlatTree, row: int) -> list[int]:
    """The tokens from the root to a row."""
    found: list[int] = []
    while row >= 0:
        found.append(draft.tokens[row])
        row = draft.parents[row]
    return found[::-1]


def window_of(proposer: Jacobi) -> Window:
    assert proposer._lookahead is not None
    return proposer._lookahead


def step(proposer: Jacobi, text: list[int], budget: int, follow) -> Draft:
    """Propose, answer every row by ``follow(its whole prefix)``, accept what is right."""
    draft = proposer.propose(budget)
    end = len(draft) - draft.scratch
    accepted, emitted = [], [follow(text)]
    at = -1
    while True:
        child = next((r for r in range(end) if draft.parents[r] == at and draft.tokens[r] == emitted[-1]), None)
        if child is None:
            break
        accepted.append(child)
        at = child
        emitted.append(follow(text + emitted))
    answers = [follow(text + path(draft, row)) for row in range(end, len(draft))]
    text += emitted
    proposer.observe(Outcome(draft, accepted, emitted, answers))
    return draft


def test_the_example() -> None:
    """The docstring's step, number by number."""
    proposer = Jacobi(window=3, ngram=3, guesses=2)
    proposer.begin([7, 8, 4, 7, 8, 9, 7])
    proposer._lookahead = Window(3, 3, [7])
    proposer._lookahead.levels = [[20, 21], [30, 31, 32]]
    draft = proposer.propose(9)
    assert list(draft.tokens) == [8, 9, 4, 20, 21, 30, 31, 32]
    assert list(draft.parents) == [-1, 0, 0, -1, 3, -1, 3, 4]
    assert draft.scratch == 5
    proposer.observe(Outcome(draft, [], [5], [90, 91, 40, 41, 42]))
    assert proposer._pool.following(7) == [(30, 40), (8, 9)]
    assert proposer._pool.following(20) == [(31, 41)]
    assert proposer._pool.following(21) == [(32, 42)]
    assert window_of(proposer).levels == [[31, 32], [40, 41, 42]]


def test_the_levels_fill_one_a_step_and_then_keep_their_sizes() -> None:
    proposer = Jacobi(window=6, ngram=5, guesses=4)
    text = [1, 2, 3]
    proposer.begin(text)
    scratch = [step(proposer, text, 64, lambda t: (7 * len(t) + 3) % 97).scratch for _ in range(7)]
    assert scratch == [5, 11, 17, 23, 23, 23, 23]


def test_every_row_of_a_column_sees_the_chain_and_its_own_column_only() -> None:
    """The paper's mask: level l of column i sees the last committed token, i tokens of level 0, and its column."""
    proposer = Jacobi(window=4, ngram=4, guesses=2)
    text = [1, 2, 3]
    proposer.begin(text)
    for _ in range(4):
        step(proposer, text, 64, lambda t: (5 * len(t) + t[-1]) % 89)
    levels = [list(ids) for ids in window_of(proposer).levels]
    draft = proposer.propose(64)
    first = len(draft) - draft.scratch
    rows = iter(range(first, len(draft)))
    for index in range(3):
        assert path(draft, next(rows)) == levels[0][: index + 1]
    for level in (1, 2):
        for column in range(4):
            expected = levels[0][:column] + [levels[k][column] for k in range(1, level + 1)]
            assert path(draft, next(rows)) == expected


@pytest.mark.parametrize(("window", "ngram", "guesses"), [(5, 2, 3), (5, 3, 3), (6, 5, 4), (1, 2, 1), (1, 4, 2)])
def test_ngrams_are_the_models_own(window: int, ngram: int, guesses: int) -> None:
    """Where the answer depends on one token alone, every n-gram of the pool ends in a true answer."""
    table = np.random.default_rng(0).permutation(50).tolist()
    proposer = Jacobi(window, ngram, guesses)
    text = [1]
    proposer.begin(text)
    for _ in range(12):
        step(proposer, text, 128, lambda t: table[t[-1]])
    assert proposer._pool.items()
    for first, rest in proposer._pool.items():
        assert len(rest) == ngram - 1
        assert rest[-1] == table[(first, *rest)[-2]]


def test_the_window_alone_learns_what_the_model_repeats() -> None:
    """The prompt has no n-gram, so all that is accepted comes from the window: soon nearly N tokens a step."""
    table = [(token + 1) % 30 for token in range(30)]
    proposer = Jacobi(window=15, ngram=5, guesses=15)
    text = [1]
    proposer.begin(text)
    for _ in range(40):
        step(proposer, text, 119, lambda t: table[t[-1]])
    before = len(text)
    for _ in range(40):
        step(proposer, text, 119, lambda t: table[t[-1]])
    assert (len(text) - before) / 40 > 4


def test_the_pool_is_a_ring() -> None:
    proposer = Jacobi(window=2, ngram=3, guesses=2)
    proposer.begin([5, 1, 1, 5, 2, 2, 5, 3, 3, 5, 2, 2, 5])
    assert proposer._pool.following(5) == [(2, 2), (3, 3)]
    draft = proposer.propose(64)
    assert list(draft.tokens[: len(draft) - draft.scratch]) == [2, 2, 3, 3]


@given(
    prompt=st.lists(st.integers(0, 4), max_size=12),
    window=st.integers(1, 6),
    ngram=st.integers(2, 6),
    guesses=st.integers(1, 6),
    budgets=st.lists(st.integers(0, 70), max_size=12),
)
def test_budgets_are_kept(prompt: list[int], window: int, ngram: int, guesses: int, budgets: list[int]) -> None:
    proposer, text = Jacobi(window, ngram, guesses), list(prompt)
    proposer.begin(prompt)
    for budget in budgets:
        draft = step(proposer, text, budget, lambda t: (3 * len(t) + sum(t[-2:])) % 5)
        assert len(draft) <= budget
        assert len(draft) <= (ngram - 1) * (window + guesses) - 1
        assert all(-1 <= parent < row for row, parent in enumerate(draft.parents))
        end = len(draft) - draft.scratch
        pairs = list(zip(draft.parents[:end], draft.tokens[:end], strict=True))
        assert len(set(pairs)) == end


@given(budget=st.integers(2, 119))
def test_a_window_fits_every_budget_that_holds_one(budget: int) -> None:
    """W and G shrink; the levels fill all the same, and the pool grows."""
    proposer = Jacobi(15, 3, 15)
    text = [1]
    proposer.begin(text)
    for _ in range(4):
        step(proposer, text, budget, lambda t: (3 * len(t)) % 101)
    assert bool(proposer._pool.items()) == (budget >= 3)


def test_a_step_without_the_window_does_not_lose_its_place() -> None:
    proposer = Jacobi(window=4, ngram=3, guesses=2)
    text = [1, 2, 3]
    proposer.begin(text)
    table = np.random.default_rng(1).permutation(60).tolist()
    for budget in [64, 64, 64, 1, 0, 64, 2, 64]:
        step(proposer, text, budget, lambda t: table[t[-1]])
    assert [len(ids) for ids in window_of(proposer).levels] == [3, 4]
    proposer.observe(Outcome(Draft([1], [-1]), [], [4]))  # cut by a controller: no answers
    assert [len(ids) for ids in window_of(proposer).levels] == [3, 4]


@pytest.mark.parametrize(("field", "value"), [("window", 0), ("ngram", 1), ("guesses", 0), ("window", 61)])
def test_sizes_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(InputError, match=field):
        make_proposer(LookaheadConfig("jacobi", **{field: value}))
