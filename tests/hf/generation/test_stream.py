"""``stream``: tokens as they come, made when they are asked for, and closed when nobody wants more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.model import LookaheadModelForCausalLM
from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.runtime.test_service import text_model
from tests.support.scripted_engine import markov

VOCAB = 24


@pytest.mark.parametrize("lookahead", [None, 3, "auto"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(30),
        SamplingParams(30, temperature=0.8, seed=4),
        SamplingParams(0),
        SamplingParams(9, stop=("ab",)),
    ],
)
def test_a_text_models_stream_is_its_answer(params: SamplingParams, lookahead: Any) -> None:
    model = text_model()
    whole = model.generate([1, 2, 3], params)
    reasons = model.stats.finish_reasons
    assert list(model.stream([1, 2, 3], params, lookahead=lookahead, adaptive=False)) == whole
    assert model.stats.finish_reasons == reasons


@pytest.mark.parametrize("config", [{}, {"suppress_tokens": [3]}])
def test_a_closed_stream_ends_the_answer(config: dict[str, Any]) -> None:
    model = text_model(**config)
    stream = model.stream([1, 2, 3], SamplingParams(1000))
    first = [next(stream) for _ in range(5)]
    stream.close()
    assert model.stats.tokens == 5
    assert model.stats.finish_reasons == ["abandoned"]
    assert list(stream) == []
    assert first == model.generate([1, 2, 3], SamplingParams(5))


def test_a_stream_says_at_once_what_is_wrong() -> None:
    with pytest.raises(InputError, match="empty"):
        text_model().stream([], SamplingParams(3))


def hf_model() -> LookaheadModelForCausalLM:
    config = LlamaConfig(vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return LookaheadModelForCausalLM(config, markov(VOCAB, seed=4), low_bit="fp32")


@pytest.mark.parametrize("options", [{}, {"lookahead": 3, "adaptive": False}, {"do_sample": True, "seed": 5}])
def test_a_models_stream_is_what_generate_gives(options: dict[str, Any]) -> None:
    model, ids = hf_model(), torch.tensor([[1, 2, 3]])
    whole = model.generate(ids, max_new_tokens=25, **options)[0, 3:].tolist()
    assert list(model.stream(ids, max_new_tokens=25, **options)) == whole
    assert model.stats.tokens == 25
    stream = model.stream(input_ids=ids, max_new_tokens=25, **options)
    assert next(stream) == whole[0]
    stream.close()
    assert model.stats.tokens < 25
    assert model.stats.finish_reasons == ["abandoned"]


class Words:
    """A tokenizer of transformers' kind: token 3 is special, 1 is half of a character."""

    all_special_ids = (3,)

    def decode(self, ids: list[int], **_: Any) -> str:
        text = "".join(chr(ord("a") + token) for token in ids if token != 1)
        return text + "\ufffd" if ids[-1:] == [1] else text


def test_a_stream_can_be_text() -> None:
    model, ids = hf_model(), torch.tensor([[1, 2, 3]])
    tokens = model.generate(ids, max_new_tokens=25)[0, 3:].tolist()
    text = list(model.stream(ids, max_new_tokens=25, text=True, tokenizer=Words()))
    assert all(text)
    assert "".join(text) == Words().decode([token for token in tokens if token != 3]).rstrip("\ufffd")
    with pytest.raises(InputError, match="text=True needs a tokenizer, and this model has none"):
        model.stream(ids, text=True)
    stream = model.stream(ids, max_new_tokens=1000, text=True, tokenizer=Words())
    next(stream)
    stream.close()
    assert model.stats.finish_reasons == ["abandoned"]


def test_a_models_stream_is_of_one_sequence_and_checked() -> None:
    model = hf_model()
    with pytest.raises(InputError, match="one sequence, got 2"):
        next(model.stream(torch.tensor([[1], [2]]), max_new_tokens=3))
    with pytest.raises(InputError, match="lookahead"):
        model.stream(torch.tensor([[1]]), lookahead="guesswork")
