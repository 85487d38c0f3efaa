"""The native predictor equals its twin in Python, number by number; its counts equal brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead._native import SuffixTrie
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.partial_matching import SOURCES, PartialMatching
from ipex_lookahead.errors import InputError
from tests.support.partial_matching import Twin, counts

tokens = st.integers(0, 5)
texts = st.lists(tokens, max_size=40)


def ids(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@given(st.lists(texts, max_size=4), st.integers(1, 5))
def test_counts_equal_brute_force(several: list[list[int]], depth: int) -> None:
    suffixes = SuffixTrie(depth)
    for text in several:
        suffixes.extend(ids(text))
    expected = counts(several, depth)
    for context, followers in expected.items():
        assert suffixes.followers(ids(list(context))) == list(reversed(followers.items()))
    runs = {tuple(text[a : a + n]) for text in several for n in range(depth + 2) for a in range(len(text) - n + 1)}
    assert len(suffixes) == len(runs | {()})
    assert suffixes.followers(ids([7])) == []


def test_many_tokens_and_large_ids() -> None:
    """The hash table grows several times; ids at the end of int32 do not collide."""
    rng = np.random.default_rng(0)
    text = [*rng.integers(0, 2**31, 300).tolist(), *rng.integers(2**31 - 40, 2**31, 3000).tolist()]
    suffixes = SuffixTrie(3)
    suffixes.extend(ids(text))
    for context, followers in counts([text], 3).items():
        assert suffixes.followers(ids(list(context))) == list(reversed(followers.items()))


step = st.tuples(st.lists(tokens, min_size=1, max_size=4), st.integers(0, 12), st.integers(0, 12), st.integers(0, 99))


@settings(max_examples=150, deadline=None)
@given(
    shape=st.sampled_from([(4, 0, False), (0, 8, False), (4, 8, False), (3, 0, True), (8, 3, True), (0, 0, True)]),
    prompt=texts,
    stored=st.lists(texts, max_size=2),
    steps=st.lists(step, max_size=6),
)
def test_equals_its_twin(
    shape: tuple[int, int, bool],
    prompt: list[int],
    stored: list[list[int]],
    steps: list[tuple[list[int], int, int, int]],
) -> None:
    depth, width, with_store = shape
    store = SuffixTrie(16) if with_store else None
    for text in stored if store is not None else []:
        store.extend(ids(text))
    mine, twin = PartialMatching(depth=depth, width=width, store=store), Twin(depth, width, stored if store else None)
    mine.begin(prompt)
    twin.begin(prompt)
    for emitted, budget, kept, seed in steps:
        draft = mine.propose(budget)
        assert (list(draft.tokens), list(draft.parents), list(draft.probs), list(draft.sources)) == twin.propose(budget)
        draft = draft.first(kept)
        top = np.random.default_rng(seed).integers(-1 if seed % 3 else 0, 12, (len(draft) + 1, 8))
        mine.observe(Outcome(draft, [], emitted, (), top))
        twin.observe(draft.tokens, draft.parents, emitted, top.tolist() if width else None)


def test_equals_its_twin_where_much_has_followed() -> None:
    """More followers than are looked at, and evidence old enough to fade."""
    rng = np.random.default_rng(5)
    mine, twin = PartialMatching(depth=3, width=4), Twin(3, 4)
    prompt = [token for other in rng.integers(1, 40, 200).tolist() for token in (0, other)]
    mine.begin(prompt)
    twin.begin(prompt)
    for _ in range(300):
        emitted = [0, int(rng.integers(1, 40))]
        top = rng.integers(0, 6, (1, 4))
        mine.observe(Outcome(Draft(), [], emitted, (), top))
        twin.observe([], [], emitted, top.tolist())
    for _ in range(2):
        draft = mine.propose(40)
        assert (list(draft.tokens), list(draft.parents), list(draft.probs), list(draft.sources)) == twin.propose(40)
        mine.observe(Outcome(Draft(), [], [0]))
        twin.observe([], [], [0])


@settings(deadline=None)
@given(prompt=texts, budget=st.integers(0, 40))
def test_drafts_are_trees_best_first_without_double_siblings(prompt: list[int], budget: int) -> None:
    proposer = PartialMatching(depth=6, width=8)
    proposer.begin(prompt)
    proposer.observe(Outcome(Draft(), [], [1, 2], (), [[1, 3, 4, 0, 5, 2, 7, 8]]))
    draft = proposer.propose(budget)
    assert len(draft) <= budget
    assert not draft.scratch
    survival: list[float] = []
    for row, (parent, p, source) in enumerate(zip(draft.parents, draft.probs, draft.sources, strict=True)):
        assert -1 <= parent < row
        assert 0 <= p <= 1
        assert source in SOURCES
        survival.append(p * (1.0 if parent < 0 else survival[parent]))
    assert survival == sorted(survival, reverse=True)
    assert len(set(zip(draft.parents, draft.tokens, strict=True))) == len(draft)


def test_a_long_copy_goes_on_past_the_longest_context() -> None:
    text = list(range(100, 160))
    proposer = PartialMatching(depth=4, width=0)
    proposer.begin([*text, *text[:3]])
    assert list(proposer.propose(40).tokens) == text[3:43]


@pytest.mark.parametrize("prompt", [[-1], [2**31], [1.5, "x"]])
def test_what_is_no_token_id_is_refused(prompt: list[int]) -> None:
    with pytest.raises(InputError, match="token id"):
        PartialMatching(depth=2, width=2).begin(prompt)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Draft(), [], [-3]),
        Outcome(Draft([1], [-1]), [], [2], (), [[1, 2]]),
        Outcome(Draft([1], [0]), [], [2], (), [[1, 2], [3, 4]]),
    ],
)
def test_what_is_no_outcome_is_refused(outcome: Outcome) -> None:
    proposer = PartialMatching(depth=2, width=2)
    proposer.begin([1, 2])
    with pytest.raises(InputError, match="invalid outcome"):
        proposer.observe(outcome)


@pytest.mark.parametrize("shape", [(17, 0), (-1, 0), (0, 9), (0, -1)])
def test_sizes_out_of_range_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be from"):
        PartialMatching(depth=shape[0], width=shape[1])
