"""Stop strings: the answers of transformers' criterion, without asking it at every token."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.errors import InputError
from ipex_lookahead.generation import stopping
from ipex_lookahead.generation.stopping import StopStrings
from ipex_lookahead.generation.text_model import StopTexts
from ipex_lookahead.system.compat import StopStringCriteria
from tests.support.byte_tokenizer import byte_tokenizer


def words() -> object:
    """A tokenizer whose tokens are one to three letters of "abc", so that strings end inside of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = "abc"
    tokens = [*letters, *(a + b for a in letters for b in letters), "abc", "cab", "bbb", "Ġab", "Ġ"]
    vocab = {token: number for number, token in enumerate([*tokens, "</s>"])}
    made = Tokenizer(models.WordLevel(vocab=vocab, unk_token="</s>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="</s>")


WORDS = words()


@settings(max_examples=60, deadline=None)
@given(
    strings=st.lists(st.text("abc ", min_size=1, max_size=5), min_size=1, max_size=3),
    ids=st.lists(st.integers(0, len(WORDS) + 3), min_size=1, max_size=40),
)
def test_every_answer_is_that_of_transformers(strings, ids):
    try:
        theirs = StopStringCriteria(tokenizer=WORDS, stop_strings=strings)
    except ValueError:
        with pytest.raises(ValueError, match="stop string"):
            StopStrings(WORDS, strings)
        return
    ours = StopStrings(WORDS, strings)
    for end in range(1, len(ids) + 1):
        prefix = torch.tensor([ids[:end]])
        assert bool(torch.as_tensor(ours(prefix, None)).all()) == bool(theirs(prefix, None).all()), (strings, ids[:end])


def test_transformers_is_asked_about_few_tokens(monkeypatch):
    asked = []

    class Counting(StopStringCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            asked.append(input_ids[0, -1].item())
            return super().__call__(input_ids, scores, **kwargs)

    monkeypatch.setattr(stopping, "StopStringCriteria", Counting)
    criterion = StopStrings(byte_tokenizer(), ["stop", "\n\n"])
    ids = random.Random(0).choices(range(256), k=500)
    for end in range(1, len(ids) + 1):
        assert not criterion(torch.tensor([ids[:end]]), None)
    if hasattr(criterion._criterion, "embedding_vec"):
        assert set(asked) <= {ord("p"), ord("\n")}
    assert bool(criterion(torch.tensor([[1, *b"a stop"]]), None))
    assert bool(criterion(torch.tensor([[1, *b"x\n\n"]]), None))


def test_a_version_that_does_not_tell_is_asked_always(monkeypatch):
    class Plain:
        def __init__(self, tokenizer, stop_strings):
            self.asked = 0

        def __call__(self, input_ids, scores):
            self.asked += 1
            return torch.tensor([self.asked == 2])

    monkeypatch.setattr(stopping, "StopStringCriteria", Plain)
    criterion = StopStrings(None, "x")
    assert [bool(criterion(torch.tensor([[1]]), None)) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("texts", [[""], ["a", "\ud800"]])
def test_texts_that_nothing_can_stop_at(texts):
    with pytest.raises(InputError, match="a text to stop at"):
        StopTexts(WORDS, texts)
