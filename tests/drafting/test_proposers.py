"""What every proposer in PROPOSERS promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting import HEADS, PROPOSERS, SECOND_MODEL, Draft, Outcome, make_proposer
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.drafting import check_head
from tests.support.scripted_engine import markov

PRESETS = Path(__file__).resolve().parents[2] / "configs" / "lookahead"


@pytest.mark.parametrize("strategy", [*PROPOSERS, *SECOND_MODEL, *HEADS])
def test_has_a_preset_that_loads(strategy: str) -> None:
    assert LookaheadConfig.from_yaml(PRESETS / f"{strategy}.yaml").strategy == strategy


def test_every_preset_has_a_proposer() -> None:
    for preset in PRESETS.glob("*.yaml"):
        config = LookaheadConfig.from_yaml(preset)
        if config.strategy in SECOND_MODEL:
            with pytest.raises(InputError, match="needs a second model; (load|pass)"):
                make_proposer(config)
        elif config.strategy in HEADS:
            with pytest.raises(InputError, match="needs a draft head"):
                check_head(config, markov())
            with pytest.raises(InputError, match="comes with a model"):
                make_proposer(config)
        else:
            make_proposer(config)


def test_the_prompt_lookup_preset_is_the_default() -> None:
    assert LookaheadConfig.from_yaml(PRESETS / "prompt_lookup.yaml") == LookaheadConfig()


def test_unknown_strategy_lists_the_known() -> None:
    with pytest.raises(InputError, match="'nonsense' is not known; choose one of .*prompt_lookup"):
        make_proposer(LookaheadConfig(strategy="nonsense"))


@pytest.mark.parametrize("strategy", PROPOSERS)
def test_is_deterministic_and_keeps_to_the_budget(strategy: str) -> None:
    def run() -> list[Draft]:
        rng = np.random.default_rng(1)
        proposer = make_proposer(LookaheadConfig(strategy=strategy))
        drafts = []
        for _ in range(3):
            proposer.begin(rng.integers(0, 4, 10).tolist())
            for budget in [0, 1, 2, 7, 64, 128]:
                draft = proposer.propose(budget)
                assert len(draft) <= budget
                assert len(draft.parents) == len(draft.tokens)
                assert all(-1 <= parent < row for row, parent in enumerate(draft.parents))
                assert 0 <= draft.scratch <= len(draft)
                scratch = rng.integers(0, 4, draft.scratch).tolist()
                assert len(draft.probs) in (0, len(draft))
                assert len(draft.sources) in (0, len(draft))
                drafts.append(Draft(list(draft.tokens), list(draft.parents), draft.scratch, list(draft.probs)))
                top = rng.integers(0, 4, (len(draft) + 1, proposer.wants.top)) if proposer.wants.top else None
                proposer.observe(Outcome(draft, [], rng.integers(0, 4, 2).tolist(), scratch, top))
        return drafts

    assert run() == run()


@pytest.mark.parametrize("strategy", PROPOSERS)
@pytest.mark.parametrize("prompt", [[], [3]])
def test_takes_an_empty_or_a_single_token_prompt(strategy: str, prompt: list[int]) -> None:
    proposer = make_proposer(LookaheadConfig(strategy=strategy))
    proposer.begin(prompt)
    assert len(proposer.propose(8)) <= 8
