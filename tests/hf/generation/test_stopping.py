"""Stop strings: the answers of transformers' criterion, from our own matcher."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import stopping_criteria

from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.stop_texts import StopTexts
from ipex_lookahead.system.compat import RELEASE
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


@pytest.mark.skipif(RELEASE < (5, 0), reason="the oracle is transformers 5")
@settings(max_examples=60, deadline=None)
@given(
    strings=st.lists(st.text("abc ", min_size=1, max_size=5), min_size=1, max_size=3),
    ids=st.lists(st.integers(0, len(WORDS) - 2), min_size=1, max_size=40),
    start=st.integers(1, 40),
)
def test_every_answer_is_that_of_transformers(strings, ids, start):
    try:
        theirs = stopping_criteria.StopStringCriteria(tokenizer=WORDS, stop_strings=strings)
    except ValueError:  # it finds no token that could end them
        return
    ours = StopTexts(WORDS, strings)
    for end in range(start, len(ids) + 1):
        expected = bool(theirs(torch.tensor([ids[:end]]), None).all())
        assert ours(np.array(ids[:end])) == expected, (strings, ids[:end])
        if expected:
            break


@pytest.mark.skipif(RELEASE < (5, 0), reason="the oracle is transformers 5; 4.51.3 answered one case otherwise")
@pytest.mark.parametrize("stops", [["fox"], ["ö", "jumps over"], ["he", " t", "dog."], ["nowhere"]])
def test_characters_of_several_tokens(stops):
    tokenizer = byte_tokenizer()
    ids = np.array(tokenizer.encode("the quick fox jumps över the lazy dog. ö"))
    theirs = stopping_criteria.StopStringCriteria(tokenizer=tokenizer, stop_strings=stops)
    for start in range(1, len(ids) + 1):
        found = StopTexts(tokenizer, stops)(ids[:start])
        assert found == bool(theirs(torch.tensor(ids[None, :start]), None)), tokenizer.decode(ids[:start])


def test_a_text_that_has_ended_inside_the_prompts_last_token_does_not_hide_the_next():
    ids = WORDS.convert_tokens_to_ids(["abc", "a"])
    assert StopTexts(WORDS, ["ab", "ca"])(np.array(ids))


@pytest.mark.parametrize("texts", [[""], ["a", "\ud800"]])
def test_texts_that_nothing_can_stop_at(texts):
    with pytest.raises(InputError, match="a stop text"):
        StopTexts(WORDS, texts)
