from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.config import OCCURRENCES, LookaheadConfig
from ipex_lookahead.drafting import Draft, Outcome, PromptLookup, make_proposer
from ipex_lookahead.errors import InputError


def begun(tokens: list[int], max_ngram: int = 2, occurrence: str = "last") -> PromptLookup:
    proposer = PromptLookup(max_ngram, occurrence)
    proposer.begin(tokens)
    return proposer


def chain(draft: Draft) -> list[int]:
    assert list(draft.parents) == list(range(-1, len(draft) - 1))
    assert draft.scratch == 0
    return list(draft.tokens)


def brute_force(tokens: list[int], max_ngram: int, budget: int, occurrence: str = "last") -> list[int]:
    """The definition, word by word: longest n first, last (or first) occurrence, copied on into the copy itself."""
    for n in range(min(max_ngram, len(tokens) - 1), 0, -1):
        suffix = tokens[-n:]
        ends = range(n, len(tokens))
        for end in ends if occurrence == "first" else reversed(ends):
            if tokens[end - n : end] == suffix:
                text = list(tokens)
                for k in range(budget):
                    text.append(text[end + k])
                return text[len(tokens) :]
    return []


def test_ngrams_inside_an_accepted_draft_are_indexed() -> None:
    proposer = begun([1, 2, 3])
    proposer.observe(Outcome(Draft(), [], [40, 41, 42, 43]))
    proposer.observe(Outcome(Draft(), [], [9, 40, 41]))
    draft = proposer.propose(2)
    assert chain(draft) == [42, 43]
    assert draft.match == draft.first(1).match == draft.best_chain().match == 2


def test_begin_forgets_the_sequence_before() -> None:
    proposer = begun([1, 2, 1])
    proposer.begin([3, 1])
    assert chain(proposer.propose(3)) == []


@pytest.mark.parametrize("budget", [0, -1])
def test_no_budget_no_draft(budget: int) -> None:
    assert len(begun([1, 1, 1]).propose(budget)) == 0


@given(
    pieces=st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=8),
    max_ngram=st.integers(1, 6),
    budget=st.integers(1, 9),
    occurrence=st.sampled_from(OCCURRENCES),
)
def test_equals_the_definition_however_the_tokens_arrive(
    pieces: list[list[int]], max_ngram: int, budget: int, occurrence: str
) -> None:
    proposer = begun(pieces[0], max_ngram, occurrence)
    tokens = list(pieces[0])
    for piece in pieces[1:]:
        assert chain(proposer.propose(budget)) == brute_force(tokens, max_ngram, budget, occurrence)
        proposer.observe(Outcome(Draft(), [], piece))
        tokens += piece
    assert chain(proposer.propose(budget)) == brute_force(tokens, max_ngram, budget, occurrence)


def test_the_configuration_names_the_occurrence() -> None:
    for occurrence, expected in (("last", [6, 2]), ("first", [5, 2])):
        proposer = make_proposer(LookaheadConfig("prompt_lookup", occurrence=occurrence))
        proposer.begin([2, 5, 2, 6, 2])
        assert chain(proposer.propose(2)) == expected
    with pytest.raises(InputError, match="occurrence is 'next'; it must be 'last' or 'first'"):
        LookaheadConfig(occurrence="next")


def test_large_token_ids_do_not_collide() -> None:
    largest = 2**32 - 1
    assert chain(begun([largest, 0, 5, largest, 0], 3).propose(1)) == [5]
    assert chain(begun([0, largest, 5, 1, largest], 3).propose(1)) == [5]
