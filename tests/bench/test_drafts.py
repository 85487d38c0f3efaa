"""What was drafted at each step, against what a proposer of ours was shown of the same answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipex_lookahead.bench.decode import lines_of, steps_of
from ipex_lookahead.bench.modes import Generation, Mode, generator
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.stats import FOLD_EVERY, GenerationStats
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.errors import InputError
from tests.hf.test_model import build
from tests.support.proposers import TreeProposer
from tests.support.scripted_engine import markov

PROMPT = [1, 2, 3]
ENDS = {"eos_token_id": 0, "pad_token_id": 0}


@pytest.fixture(scope="module")
def model() -> Any:
    return build(markov(vocab_size=12, order=2, seed=2))


class Shown(TreeProposer):
    """Drafts at every other step, names its tokens, and keeps the outcomes that it observes."""

    def __init__(self, text: list[int]) -> None:
        super().__init__(12, text)
        self.seen: list[Outcome] = []
        self._turn = False

    def propose(self, budget: int) -> Draft:
        self._turn = not self._turn
        if not self._turn:
            return Draft()
        draft = super().propose(budget)
        names = ["mine" if parent < 0 else "yours" for parent in draft.parents]
        return Draft(draft.tokens, draft.parents, 0, [0.51239] * len(draft.tokens), names)

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        self.seen.append(outcome)


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "seed": 3, "temperature": 0.9}])
def test_steps_are_those_that_the_proposer_was_shown(model: Any, sampling: dict[str, Any]) -> None:
    settings = ENDS | sampling
    text = generator(model, 60, **settings)(PROMPT, 0).tokens
    made: list[Shown] = []

    def proposer(config: LookaheadConfig) -> Shown:
        made.append(Shown([*PROMPT, *text]))
        return made[0]

    generate = generator(model, 60, keep_drafts=True, proposer=proposer, **settings)
    answer = generate(PROMPT, LookaheadConfig(num_draft_tokens=6, adaptive=False))
    assert answer.tokens == text
    steps = list(steps_of(answer))
    seen = made[0].seen
    assert len(steps) - len(seen) in (0, 1), "the step that ends an answer is shown to nobody"
    assert [(s["drafted"], s["parents"], s["sources"], s["accepted"], s["emitted"]) for s in steps[: len(seen)]] == [
        (list(o.draft.tokens), list(o.draft.parents), list(o.draft.sources), list(o.accepted), list(o.emitted))
        for o in seen
    ]
    assert [token for step in steps for token in step["emitted"]] == text[1:]
    position = len(PROMPT) + 1
    for step in steps:
        assert step["position"] == position
        position += len(step["emitted"])
        assert len(step["probs"]) == len(step["drafted"])
        assert set(step["probs"]) <= {0.5124}
    assert any(step["accepted"] for step in steps)
    assert any(not step["drafted"] for step in steps)


def test_drafts_are_kept_only_where_that_was_asked_for(model: Any) -> None:
    generator(model, 20, **ENDS)(PROMPT, 3)
    assert model.stats.drafts is None
    with pytest.raises(InputError, match="keep_drafts"):
        generator(model, 20, keep_drafts=1, **ENDS)(PROMPT, 3)


def test_drafts_are_kept_beyond_those_that_are_counted_at_once() -> None:
    stats = GenerationStats(strategy="suffix", prompt_tokens=1, drafts=[])
    tokens = [7]
    for number in range(FOLD_EVERY + 3):
        stats.verified(Draft([number, 5], [-1, 0]), [0])
        stats.per_step += [(2, 1, 0.0, 0.0), (0, 0, 0.0, 0.0)]
        tokens += [number, 6, 8]
    stats.fold()
    steps = list(steps_of(Generation(tokens, stats)))
    assert [step["drafted"] for step in steps[::2]] == [[number, 5] for number in range(FOLD_EVERY + 3)]
    assert [step["emitted"] for step in steps[1::2]] == [[8]] * (FOLD_EVERY + 3)
    assert steps[0]["sources"] == ["suffix", "suffix"]
    assert steps[-1]["position"] == len(tokens)


def test_lines_name_prompt_and_mode_and_plain_decoding_has_none() -> None:
    stats = GenerationStats(prompt_tokens=4, strategy="auto", drafts=[(Draft([5, 6], [-1, 0], scratch=1), [0])])
    stats.per_step = [(2, 1, 0.0, 0.0)]
    answers = [[], [Generation([1, 5, 9], stats)]]
    (line,) = lines_of(Mode("auto", answers, memory="cold"), 1, "b").splitlines()
    assert json.loads(line) == {
        "prompt": "b", "number": 1, "lookahead": "auto", "strategy": "auto", "adaptive": True, "memory": "cold",
        "repetition": 1, "step": 1, "position": 5, "drafted": [5, 6], "parents": [-1, 0], "sources": ["auto", "auto"],
        "probs": [], "scratch": 1, "accepted": [0], "emitted": [5, 9],
    }  # fmt: skip
    assert lines_of(Mode(0, answers), 1, "b") == ""
