"""The examples of ``suffix``, ``recycling`` and ``auto``, and what each source adds."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead._native import SuffixTrie
from ipex_lookahead.drafting import Draft, Outcome
from ipex_lookahead.drafting.partial_matching import auto, recycling, suffix


def rows(draft: Draft) -> list[tuple[int, int]]:
    """(token, parent's token, -1 for the root)."""
    return [(t, -1 if p < 0 else draft.tokens[p]) for t, p in zip(draft.tokens, draft.parents, strict=True)]


def test_suffix_mixes_what_followed() -> None:
    proposer = suffix()
    proposer.begin([1, 2, 3, 8, 2, 4, 5, 2])
    assert rows(proposer.propose(3)) == [(4, -1), (3, -1), (5, 4)]
    proposer.begin([3, 2, 9, 3, 2, 9, 1, 2, 7, 3, 2])
    assert rows(proposer.propose(1)) == [(9, -1)]


def test_counts_outrank_recency() -> None:
    proposer = suffix()
    proposer.begin([5, 1, 5, 1, 5, 1, 5, 2, 5])
    assert proposer.propose(1).tokens == [1]
    proposer.begin([5, 1, 9, 5, 2, 5])
    assert proposer.propose(1).tokens == [2]


def test_suffix_looks_into_the_store() -> None:
    store = SuffixTrie(8)
    store.extend(np.array([1, 2, 3, 4, 5], np.int32))
    proposer = suffix(store)
    proposer.begin([1, 2])
    draft = proposer.propose(3)
    assert list(draft.tokens) == [3, 4, 5]
    assert list(draft.sources) == ["store"] * 3
    store.extend(np.array([1, 2, 7], np.int32))  # another generation ended meanwhile
    assert proposer.propose(1).tokens == [7]


def test_recycling_begins_with_the_prompts_pairs() -> None:
    proposer = recycling()
    proposer.begin([5, 6, 7, 5])
    assert rows(proposer.propose(2)) == [(6, -1), (7, 6)]


def test_recycling_keeps_the_most_recent_pairs() -> None:
    proposer = recycling(2)
    proposer.begin([5, 1, 5, 2, 5, 3, 5, 2, 5])
    assert {t for t, p in rows(proposer.propose(8)) if p == -1} == {2, 3}


def test_recycling_learns_from_every_row() -> None:
    proposer = recycling()
    proposer.begin([5, 6, 7, 5])
    draft = Draft([6], [-1])
    proposer.observe(Outcome(draft, [0], [6, 9], (), [[6, 8], [9, 7]]))
    proposer.observe(Outcome(Draft(), [], [5]))
    assert set(rows(proposer.propose(4))) == {(6, -1), (8, -1), (9, 6), (7, 6)}


def test_recycling_learns_from_rejected_rows() -> None:
    proposer = recycling()
    proposer.begin([1])
    proposer.observe(Outcome(Draft([30, 31], [-1, 0]), [], [2], (), [[2, 3], [40, 41], [50, 51]]))
    proposer.observe(Outcome(Draft(), [], [31]))
    assert set(proposer.propose(2).tokens) == {50, 51}


def test_recycling_is_trusted_as_it_proves_right() -> None:
    """Where the second most likely id keeps coming, it overtakes the first."""
    proposer = recycling()
    proposer.begin([1])
    for _ in range(60):
        proposer.observe(Outcome(Draft(), [], [2], (), [[3, 2]]))
        proposer.observe(Outcome(Draft(), [], [1], (), [[4, 1]]))
    assert rows(proposer.propose(2)) == [(2, -1), (1, 2)]


def test_auto_merges_its_sources() -> None:
    proposer = auto()
    proposer.begin([9, 1, 2])
    proposer.observe(Outcome(Draft(), [], [3, 9, 1, 2], (), [[3, 4]]))
    draft = proposer.propose(24)
    first = {t: s for t, p, s in zip(draft.tokens, draft.parents, draft.sources, strict=True) if p == -1}
    assert first == {3: "suffix", 4: "recycling"}


def test_auto_asks_for_likeliest_ids_and_suffix_does_not() -> None:
    assert (auto().wants.top, recycling().wants.top, suffix().wants.top) == (8, 8, 0)
