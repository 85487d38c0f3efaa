"""A text model: several prompts in one batch, and what is stored of a generation."""

from __future__ import annotations

from typing import Any

import pytest

from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.support.letters import text_model

PROMPTS = [[1, 2, 3], [4, 5], [6]]


@pytest.mark.parametrize("lookahead", [0, 3, "auto"])
def test_a_batch_has_the_answers_of_single_prompts(lookahead: Any) -> None:
    model, params = text_model(), SamplingParams(20)
    alone = [model.generate(prompt, params) for prompt in PROMPTS]
    assert model.generate_batch(PROMPTS, params, lookahead=lookahead) == alone
    assert model.stats.sequences == len(PROMPTS)
    assert model.stats.tokens == sum(map(len, alone))


def test_prompts_of_a_batch_have_their_own_noise() -> None:
    model, params = text_model(), SamplingParams(20, temperature=2.0, seed=3)
    first, second = model.generate_batch([[1, 2], [1, 2]], params, lookahead=3)
    assert first == model.generate([1, 2], params)
    assert first != second


def test_a_batch_without_prompts_or_room_is_empty() -> None:
    model = text_model()
    assert model.generate_batch([], SamplingParams(3)) == []
    assert model.generate_batch(PROMPTS, SamplingParams(0)) == [[], [], []]
    assert model.stats.finish_reasons == ["length"] * 3
    with pytest.raises(InputError, match="the prompt is empty"):
        model.generate_batch([[1], []], SamplingParams(3))


def test_drafts_are_stored_on_request() -> None:
    model, params = text_model(), SamplingParams(30)
    model.generate([1, 2, 3], params, lookahead=3, adaptive=False)
    assert model.stats.drafts is None
    model.generate([1, 2, 3], params, lookahead=3, adaptive=False, keep_drafts=True)
    assert model.stats.drafts is not None
    assert sum(len(draft) for draft, _ in model.stats.drafts) == model.stats.drafted > 0
