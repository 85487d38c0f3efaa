"""``generate(proposer=...)``: drafts of the caller's own never change the output, and are counted as theirs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.errors import InputError
from tests.hf.test_model import build
from tests.support.proposers import OracleProposer, RandomProposer, TreeProposer
from tests.support.scripted_engine import markov

PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def model():
    return build(markov(vocab_size=12, order=2, seed=2))


def answer(model, **settings):
    settings = {"max_new_tokens": 40, "eos_token_id": 0, "pad_token_id": 0} | settings
    return model.generate(torch.tensor([PROMPT]), **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"do_sample": True, "seed": 3, "temperature": 0.9}], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("lookahead", [None, 1, 8, "auto", LookaheadConfig(num_draft_tokens=5, adaptive=False)])
def test_it_never_changes_the_output(lookahead, settings, model):
    plain = answer(model, lookahead=0, **settings)
    text = plain[0].tolist()
    made = []
    for make in (
        lambda config: OracleProposer([*text, *[0] * 64]),
        lambda config: RandomProposer(12),
        lambda config: TreeProposer(12, text),
    ):

        def proposer(config, make=make):
            made.append(config)
            return make(config)

        assert torch.equal(answer(model, lookahead=lookahead, proposer=proposer, **settings), plain)
        assert set(model.stats.drafted_by_source) <= {"proposer"}
    assert len(made) == 3
    wanted = {None: 32, "auto": 32}.get(lookahead) if not isinstance(lookahead, LookaheadConfig) else 5
    assert {config.num_draft_tokens for config in made} == {wanted or lookahead}


def test_drafts_that_are_right_save_steps_and_are_counted_as_its_own(model):
    text = answer(model, lookahead=0)[0].tolist()
    answer(
        model,
        lookahead=LookaheadConfig(num_draft_tokens=4, adaptive=False),
        proposer=lambda config: OracleProposer([*text, *[0] * 64]),
    )
    assert model.stats.steps < (len(text) - len(PROMPT)) / 2
    assert model.stats.accepted_by_source["proposer"] == model.stats.accepted > 0


def test_off_is_off(model):
    for lookahead in (0, False):
        answer(model, lookahead=lookahead, proposer=lambda config: pytest.fail("nothing is drafted"))
        assert model.stats.drafted == 0


def test_each_sequence_has_one(model):
    made: list[OracleProposer] = []

    def proposer(config):
        made.append(RandomProposer(12))
        return made[-1]

    model.generate(torch.tensor([PROMPT, [4, 5, 6]]), max_new_tokens=4, eos_token_id=0, lookahead=2, proposer=proposer)
    assert len(made) == 2


def test_what_it_does_not_go_with(model):
    make = lambda config: RandomProposer(12)  # noqa: E731
    with pytest.raises(InputError, match="both proposer and a draft model"):
        answer(model, proposer=make, draft_model=model)
    for lookahead in ("suffix", LookaheadConfig("suffix")):
        with pytest.raises(InputError, match="with strategy 'suffix' are both given"):
            answer(model, proposer=make, lookahead=lookahead)
    with pytest.raises(InputError, match="lookahead"):
        answer(model, proposer=make, lookahead=1000)


class Wrong(RandomProposer):
    """Returns what it was made with."""

    def __init__(self, returned):
        super().__init__(12)
        self.returned = returned

    def propose(self, budget: int):
        return self.returned


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1, 2], "returned a list, not a Draft"),
        (None, "returned None, not a Draft"),
        (np.array([1, 2]), "returned a ndarray, not a Draft"),
        (Draft.chain([2**40]), "drafted the id 1099511627776 at 0; ids go from 0 to 11"),
        (Draft.chain([3, -1]), "drafted the id -1 at 1"),
        (Draft.chain([12]), "drafted the id 12 at 0"),
        (Draft.chain([1.5]), "not lists of numbers"),
        (Draft("ab", [-1, 0]), "not lists of numbers"),
        (Draft(7, [-1]), "not lists of numbers"),
        (Draft(np.array([[1, 2]]), [-1]), "not lists of numbers"),
        (Draft([1, 2], [-1]), "returned 2 tokens and 1 parents"),
        (Draft([1, 2], [-1, 1]), "returned parent 1 for token 1; it must be from -1 to 0"),
        (Draft([1], [-2]), "returned parent -2 for token 0"),
        (Draft([1], [-1], 2), "returned 1 tokens of which 2 are scratch rows"),
        (Draft([1], [-1], probs=[0.5, 0.5]), "returned 1 tokens and 2 probs"),
        (Draft([1], [-1], probs=[float("nan")]), "not from 0 to 1"),
        (Draft([1], [-1], sources=[3]), "sources that are not strings"),
    ],
)
def test_what_is_no_draft_says_what_one_is(returned, said, model):
    with pytest.raises(InputError, match=re.escape(said)) as error:
        answer(model, proposer=lambda config: Wrong(returned), lookahead=LookaheadConfig(adaptive=False))
    assert str(error.value).startswith("Wrong.propose ")
    assert "Draft.chain(ids) is one path" in error.value.hint
    assert torch.equal(answer(model), answer(model, lookahead=0)), "the model is as good as before"


def test_numbers_of_numpy_are_numbers(model):
    text = answer(model, lookahead=0)[0].tolist()

    class Numpy(OracleProposer):
        def propose(self, budget: int) -> Draft:
            draft = super().propose(budget)
            probs = np.full(len(draft), 0.9, np.float32)
            return Draft(np.array(draft.tokens, np.int64), np.array(draft.parents, np.int32), probs=probs)

    made = answer(model, proposer=lambda config: Numpy([*text, *[0] * 64]))
    assert made[0].tolist() == text
    assert model.stats.accepted > 0


def test_what_is_no_proposer_says_what_one_is(model):
    class Half:
        def propose(self, budget: int) -> Draft:
            return Draft()

    with pytest.raises(InputError, match="proposer made a Half, which has no begin and no observe") as error:
        answer(model, proposer=lambda config: Half())
    assert "propose(budget)" in error.value.hint
    for made in (None, [], "suffix"):
        with pytest.raises(InputError, match="which has no begin"):
            answer(model, proposer=lambda config, made=made: made)
    for top in (65, -1, None, 1.0, True):
        with pytest.raises(InputError, match=r"Wrong\.wants\.top is"):
            answer(model, proposer=lambda config, top=top: _with(wants=OutputRequest(top=top)))
    for wants in (3, None, OutputRequest(np.zeros(1, np.int32))):
        with pytest.raises(InputError, match=r"Wrong\.wants is .*it must be an OutputRequest for all rows"):
            answer(model, proposer=lambda config, wants=wants: _with(wants=wants))

    class Older(Half):
        top = 3

        def begin(self, prompt: Sequence[int]) -> None: ...
        def observe(self, outcome: Outcome) -> None: ...

    with pytest.raises(InputError, match=r"Older\.top is 3, but proposers have no attribute top") as error:
        answer(model, proposer=lambda config: Older())
    assert "wants = OutputRequest(top=3)" in error.value.hint


def _with(**attributes):
    made = Wrong(Draft())
    vars(made).update(attributes)
    return made


def test_a_proposer_that_wants_hidden_states_begins_with_those_of_the_prompt(model):
    begun, seen = [], []

    class Reading(OracleProposer):
        wants = OutputRequest(hidden=(2,))

        def begin(self, prompt: Sequence[int], hidden: Any = None) -> None:
            super().begin(prompt)
            begun.append((len(prompt), hidden[2].tolist()))

        def observe(self, outcome: Outcome) -> None:
            super().observe(outcome)
            seen.append(len(outcome.hidden[2]))

    text = answer(model, lookahead=0)[0].tolist()
    answer(model, proposer=lambda config: Reading([*text, *[0] * 64]))
    ((length, states),) = begun
    assert states == [[2, at, token] for at, token in enumerate(text[: length - 1])]
    assert seen


def test_more_than_the_budget_is_an_error(model):
    class Greedy(RandomProposer):
        def propose(self, budget: int) -> Draft:
            return super().propose(budget + 1)

    with pytest.raises(InputError, match="Greedy proposed 5 tokens with a budget of 4"):
        answer(model, proposer=lambda config: Greedy(12), lookahead=LookaheadConfig(num_draft_tokens=4, adaptive=False))
