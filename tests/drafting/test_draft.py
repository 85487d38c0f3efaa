"""Drafts as trees, and the one path that is left of them for engines without trees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.drafting.draft import Draft


@st.composite
def trees(draw, probs: bool = True):
    count = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, row - 1)) for row in range(count)]
    chances = [draw(st.floats(0.01, 1.0)) for _ in range(count)] if probs and draw(st.booleans()) else []
    scratch = draw(st.integers(0, count)) if not chances else 0
    return Draft(list(range(100, 100 + count)), parents, scratch, chances, [f"s{row}" for row in range(len(chances))])


def paths(draft: Draft):
    """Every path from the root down, as rows."""
    for row in range(len(draft.tokens) - draft.scratch):
        path = [row]
        while draft.parents[path[0]] >= 0:
            path.insert(0, draft.parents[path[0]])
        yield path


def worth(draft: Draft, path) -> float:
    total, reached = 0.0, 1.0
    for row in path:
        reached *= draft.probs[row] if draft.probs else 1.0
        total += reached
    return total


@given(trees())
def test_the_best_chain_is_a_path_and_none_is_worth_more(draft):
    chain = draft.best_chain()
    assert list(chain.parents) == list(range(-1, len(chain.tokens) - 1))
    assert chain.scratch == 0
    every = list(paths(draft))
    assert bool(every) == bool(chain.tokens)
    if every:
        rows = [draft.tokens.index(token) for token in chain.tokens]
        assert rows in every
        assert worth(draft, rows) == max(worth(draft, path) for path in every)
        assert list(chain.probs) == [draft.probs[row] for row in rows if draft.probs]
        assert list(chain.sources) == [draft.sources[row] for row in rows if draft.sources]


def test_a_chain_stays_the_very_same():
    for chain in (Draft(), Draft.chain([1, 2, 3]), Draft([5], [-1])):
        assert chain.best_chain() is chain


def test_the_likelier_short_path_beats_the_longer_one():
    draft = Draft([1, 2, 3, 4], [-1, -1, 1, 2], 0, [0.9, 0.2, 0.9, 0.9])
    assert draft.best_chain().tokens == [1]
    assert Draft([1, 2, 3, 4], [-1, -1, 1, 2]).best_chain().tokens == [2, 3, 4]


def test_scratch_rows_are_dropped():
    assert Draft([1, 2, 3], [-1, 0, 1], 1).best_chain().tokens == [1, 2]
    assert Draft([1, 2], [-1, 0], 2).best_chain().tokens == []
