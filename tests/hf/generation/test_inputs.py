"""Prompts as callers pass them: a tokenizer's output is taken, and text is refused with what takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import BatchEncoding

from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.generation.inputs import prompts_of

IDS, MASK = [[0, 5, 9], [7, 8, 2]], [[0, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("tensors", [None, "pt", "np"])
@pytest.mark.parametrize("more", [{}, {"token_type_ids": MASK}])
def test_the_output_of_a_tokenizer_is_taken_with_its_mask(tensors: str | None, more: dict[str, Any]) -> None:
    encoding = BatchEncoding({"input_ids": IDS, "attention_mask": MASK, **more}, tensor_type=tensors)
    ids, prompts = prompts_of(encoding, vocab_size=10)
    assert ids.tolist() == IDS
    assert [one.tolist() for one in prompts] == [[5, 9], [7, 8, 2]]
    _, own = prompts_of(encoding, torch.ones(2, 3), vocab_size=10)
    assert own[0].tolist() == [0, 5, 9]


def test_a_mapping_without_ids_is_refused() -> None:
    with pytest.raises(InputError, match="the prompt is a mapping of pixel_values; it needs input_ids"):
        prompts_of({"pixel_values": [1]}, vocab_size=10)


@pytest.mark.parametrize("text", ["Once upon a time", ["one", "two"]])
def test_text_is_refused_with_what_takes_it(text: Any) -> None:
    with pytest.raises(InputError, match=r"the prompt is a text, .*ipex_lookahead\.LLM takes text") as caught:
        prompts_of(text, vocab_size=10)
    assert 'LLM(path).generate("text")' in caught.value.hint
    assert 'model.tokenizer("text", return_tensors="pt")' in caught.value.hint
