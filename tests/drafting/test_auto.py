"""``auto``'s window: what it adds to the tree, and where."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.drafting import Auto, Draft, Outcome
from ipex_lookahead.drafting.auto import COLUMNS, NGRAM
from ipex_lookahead.drafting.window import NGramPool, Window

ROWS = Window(COLUMNS, NGRAM, [0]).most_rows


def follow(text: list[int]) -> int:
    return (3 * len(text) + 5 * text[-1] + sum(text[-3:])) % 11


def step(proposer: Auto, text: list[int], budget: int, take: int, widen: bool = True) -> Draft:
    """Propose, take the first ``take`` rows and the window, answer every row by ``follow(its whole prefix)``."""
    draft = proposer.propose(budget)
    draft = draft.widened(take) if widen else draft.first(take)
    paths: list[list[int]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    answers = [follow(text), *(follow(text + path) for path in paths)]
    end = len(draft) - draft.scratch
    accepted, emitted, at = [], [answers[0]], -1
    while True:
        child = next((r for r in range(end) if draft.parents[r] == at and draft.tokens[r] == emitted[-1]), None)
        if child is None:
            break
        accepted.append(child)
        emitted.append(answers[child + 1])
        at = child
    top = np.array([[answer, *range(20, 27)] for answer in answers], np.int32)
    text += emitted
    proposer.observe(Outcome(draft, accepted, emitted, answers[end + 1 :], top))
    return draft


def test_the_window_fills_level_by_level() -> None:
    proposer, text = Auto(), [1, 2, 3]
    proposer.begin(text)
    scratch = [step(proposer, text, 40, 8).scratch for _ in range(6)]
    assert scratch == [COLUMNS - 1, 2 * COLUMNS - 1, ROWS, ROWS, ROWS, ROWS]
    assert ROWS == (NGRAM - 1) * COLUMNS - 1


def test_without_room_there_is_none() -> None:
    proposer, text = Auto(), [1, 2, 3]
    proposer.begin(text)
    for _ in range(4):
        step(proposer, text, 40, 8)
    assert step(proposer, text, ROWS + 4, 5).scratch == 0
    assert step(proposer, text, ROWS + 5, 5).scratch == ROWS


def test_its_ngrams_join_the_tree() -> None:
    """The text never comes back to where it was, so only the window knows what follows."""
    proposer, text = Auto(), [1]
    proposer.begin(text)
    named: list[str] = []
    for _ in range(30):
        draft = step(proposer, text, 40, 26)
        named += draft.sources[: len(draft) - draft.scratch]
    assert "jacobi" in named


def test_ngrams_stand_where_their_chances_put_them() -> None:
    proposer = Auto()
    proposer.begin([7, 1, 2, 7])
    wide = proposer.propose(8).widened(0)
    proposer.observe(Outcome(wide, [], [7], [9] * wide.scratch))
    proposer._pool = pool = NGramPool(5)
    pool.remember(7, (1, 9, 9))
    pool.remember(7, (5, 6, 4))
    draft = proposer.propose(8)
    found = dict(zip(zip(draft.tokens, draft.parents, strict=True), draft.sources, strict=True))
    first = draft.tokens.index(1)
    assert found[1, -1] != "jacobi", "who knew it already keeps its name"
    assert found[9, first] == found[5, -1] == "jacobi"
    survival: list[float] = []
    for parent, prob in zip(draft.parents, draft.probs, strict=True):
        survival.append(prob * (1.0 if parent < 0 else survival[parent]))
    assert survival == sorted(survival, reverse=True)
    assert proposer.propose(2).tokens == draft.tokens[:2]


def test_what_guesses_made_the_model_think_is_not_recycled() -> None:
    """A scratch row's likeliest ids do not become successors: its context was never the text."""
    proposer = Auto()
    proposer.begin([3, 3, 3])
    draft = proposer.propose(40).widened(1)
    assert draft.scratch == len(draft) - 1 == COLUMNS - 1
    top = np.array([[5, 6]] * 2 + [[8, 9]] * draft.scratch, np.int32)
    proposer.observe(Outcome(draft, [], [3], [8] * draft.scratch, top))
    tokens = set(proposer.propose(40).tokens)
    assert {5, 6} <= tokens
    assert not {8, 9} & tokens


@given(
    prompt=st.lists(st.integers(0, 10), min_size=1, max_size=12),
    steps=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20), st.booleans()), max_size=14),
)
def test_budgets_are_kept(prompt: list[int], steps: list[tuple[int, int, bool]]) -> None:
    proposer, text = Auto(), list(prompt)
    proposer.begin(prompt)
    for budget, take, widen in steps:
        draft = step(proposer, text, budget, take, widen)
        assert len(draft) <= budget
        assert len(draft.probs) == len(draft.sources) == len(draft.parents) == len(draft.tokens)
        assert all(-1 <= parent < row for row, parent in enumerate(draft.parents))
        end = len(draft) - draft.scratch
        pairs = list(zip(draft.parents[:end], draft.tokens[:end], strict=True))
        assert len(set(pairs)) == end, "no token twice after the same parent"
