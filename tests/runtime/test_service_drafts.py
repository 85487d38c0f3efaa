"""A service with a draft model: what is kept of both models, and within which memory."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.runtime.text_model import TextModel
from tests.support.hashed_engine import HashedEngine
from tests.support.letters import VOCAB, text_model, tokens_of

SECONDS = 60  # before a test gives up; nothing here takes one


def drafted_for() -> tuple[TextModel, HashedEngine, HashedEngine]:
    """A model, its engine, and that of a draft model that mostly agrees with it."""
    target, draft = HashedEngine(VOCAB), HashedEngine(VOCAB)
    model = text_model(target)
    model.use_draft_model(text_model(draft))
    return model, target, draft


def test_a_second_turn_computes_the_new_tokens_only_in_both_models() -> None:
    model, target, draft = drafted_for()
    made = Service(model, cache_memory=2 * 100 * 64)
    first = np.random.default_rng(0).integers(0, VOCAB, 1000).tolist()
    asking: dict[str, Any] = {"lookahead": 4, "adaptive": False}
    answer = tokens_of(list(made.stream(first, SamplingParams(30), **asking)))
    second = [*first, *answer, 1, 2, 3]
    target.rows = draft.rows = 0
    events = list(made.stream(second, SamplingParams(1), **asking))
    assert (target.rows, draft.rows) == (1 + 3, 0), "the last of the answer, and what was said to it"
    target.rows = draft.rows = 0
    again = list(made.stream(second, SamplingParams(12), **asking))
    stats = again[-1].stats
    assert stats is not None
    assert stats.accepted > 0
    assert target.rows == 1 + stats.steps + stats.drafted, "one row for what follows the prompt"
    assert draft.rows <= 4 + 1 + 3 + 12 + 4 * stats.steps, "the end of the answer, what was said to it, and drafts"
    made.close()
    assert tokens_of(events)[:1] == tokens_of(again)[:1]
    assert tokens_of(again) == text_model(HashedEngine(VOCAB)).generate(second, SamplingParams(12))


def test_answers_to_one_prompt_read_it_once_in_both_models() -> None:
    model, target, draft = drafted_for()
    made = Service(model, cache_memory=2 * 100 * 64)
    prompt = np.random.default_rng(1).integers(0, VOCAB, 640).tolist()
    params = SamplingParams(9, temperature=0.8, seed=3)
    list(made.stream([1], SamplingParams(1)))  # what a step costs has been measured by now
    target.rows = draft.rows = 0
    streams = [made.stream(prompt, params, sequence=n, lookahead=3, adaptive=False) for n in range(4)]
    answers = [tokens_of(list(stream)) for stream in streams]
    made.close()
    assert target.rows < 640 + 4 * 40
    assert draft.rows < 640 + 4 * 40
    rest = text_model(HashedEngine(VOCAB))
    alone = Service(rest)
    assert answers == [tokens_of(list(alone.stream(prompt, params, sequence=n))) for n in range(4)]
    alone.close()


@pytest.mark.parametrize("pages", [4, 5, 7, 30])
def test_a_draft_models_keys_are_within_the_memory(pages: int) -> None:
    """Where there is no room for them nothing is drafted; the answers are the same."""
    model, target, draft = drafted_for()
    memory = 2 * pages * 64
    made = Service(model, slots=3, cache_memory=memory)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, VOCAB, int(length)).tolist() for length in (100, 130, 70, 190, 20, 150)]
    streams = [made.stream(prompt, SamplingParams(40), lookahead=4, adaptive=False) for prompt in prompts]
    answers = []
    for stream in streams:
        events = []
        for event in stream:
            events.append(event)
            assert made.kv_bytes <= memory
        answers.append(tokens_of(events))
    made.close()
    plain = text_model(HashedEngine(VOCAB))
    assert answers == [plain.generate(prompt, SamplingParams(40)) for prompt in prompts]


@pytest.mark.parametrize("strategy", ["head", "draft_model"])
def test_a_strategy_for_which_nothing_is_there_is_refused_and_disturbs_nobody(strategy: str) -> None:
    with closing(Service(text_model(HashedEngine(VOCAB)))) as service:
        other = service.stream([1, 2, 3], SamplingParams(20))
        for drafting in (strategy, LookaheadConfig(strategy, 3)):
            with pytest.raises(InputError, match="needs a (second model|draft head)"):
                service.stream([1, 2, 3], SamplingParams(5), lookahead=drafting)
        assert tokens_of(list(other)) == text_model(HashedEngine(VOCAB)).generate([1, 2, 3], SamplingParams(20))
