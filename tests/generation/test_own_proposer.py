"""``generate(proposer=...)``: drafts of the caller's own never change the output, and are counted as theirs."""

from __future__ import annotations

import pytest
import torch

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.errors import InputError
from tests.support.proposers import OracleProposer, RandomProposer, TreeProposer
from tests.support.scripted_engine import markov
from tests.test_model import build

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
        with pytest.raises(InputError, match="has the strategy 'suffix', which is another one's"):
            answer(model, proposer=make, lookahead=lookahead)
    with pytest.raises(InputError, match="lookahead"):
        answer(model, proposer=make, lookahead=1000)


def test_more_than_the_budget_is_an_error(model):
    class Greedy(RandomProposer):
        def propose(self, budget: int) -> Draft:
            return super().propose(budget + 1)

    with pytest.raises(InputError, match="Greedy proposed 5 tokens with a budget of 4"):
        answer(model, proposer=lambda config: Greedy(12), lookahead=LookaheadConfig(num_draft_tokens=4, adaptive=False))
