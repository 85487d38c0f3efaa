"""Text as it comes: the same in the end, no character in halves, as soon as it is known."""

from __future__ import annotations

import io
import random
import re
from contextlib import redirect_stdout

import pytest
import torch
from transformers import TextStreamer

from ipex_lookahead.tokenization.detokenizer import Detokenizer
from ipex_lookahead.tokenization.gguf import text_from_gguf

from .conftest import SENTENCES, TEXTS


@pytest.fixture(params=["gpt2", "llama"])
def tokenizer(request, bpe_metadata, spm_metadata):
    return text_from_gguf(bpe_metadata if request.param == "gpt2" else spm_metadata, "x.gguf")


def streamed(tokenizer, ids):
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.put(token) for token in ids), detokenizer.end()]


@pytest.mark.parametrize("text", [*TEXTS, "".join(TEXTS)])
@pytest.mark.rotating(16)
def test_the_pieces_are_the_text(tokenizer, text):
    ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
    parts = streamed(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids, skip_special_tokens=True)
    assert not any("\ufffd" in part for part in parts)
    assert parts == streamed(tokenizer.for_transformers(), ids)


@pytest.mark.parametrize("text", SENTENCES)
def test_it_says_what_transformers_streamer_says(tokenizer, text):
    # Theirs starts anew after each line end, where sentencepiece drops a space.
    text = re.sub("\n +", "\n", text)
    ids = tokenizer.encode(text)
    streamer = TextStreamer(tokenizer.for_transformers(), skip_special_tokens=True)
    with redirect_stdout(io.StringIO()) as out:
        for token in ids:
            streamer.put(torch.tensor([token]))
        streamer.end()
    assert "".join(streamed(tokenizer, ids)) == out.getvalue().removesuffix("\n")


def test_a_token_is_shown_at_once_and_a_character_whole(tokenizer):
    detokenizer = Detokenizer(tokenizer)
    for token in tokenizer.encode("the cat 🙂日", add_special_tokens=False):
        shown = detokenizer.put(token)
        if tokenizer.decode([token]).strip(" \ufffd").isascii() and "\ufffd" not in tokenizer.decode([token]):
            assert shown.strip() == tokenizer.decode([token]).strip()
        assert "\ufffd" not in shown
    assert detokenizer.end() == ""


def test_bytes_that_are_no_text_do_not_pile_up(bpe_metadata):
    """A model may say anything; what is held back stays bounded."""
    tokenizer = text_from_gguf(bpe_metadata, "x.gguf")
    halves = [i for token, i in tokenizer.get_vocab().items() if tokenizer.decode([i]) == "\ufffd"]
    ids = random.Random(0).choices(halves, k=1000)
    detokenizer, waiting = Detokenizer(tokenizer), 0
    for token in ids:
        waiting = 0 if detokenizer.put(token) else waiting + 1
        assert waiting < 64
