"""Prompts are the paragraphs of texts, in an order that a seed draws; each is rendered when it is its turn."""

from __future__ import annotations

from pathlib import Path

from ipex_lookahead.auto import load_text_model
from ipex_lookahead.tokenization.prompts import build_prompt
from ipex_lookahead.training.prompts import pieces_of, prompts_of
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.tiny import write_tiny_llama


def test_paragraphs_in_an_order_of_the_seeds() -> None:
    texts = ["one\ntwo\n\n  three \n \t\n\n", "\n\nfour"]
    assert sorted(pieces_of(texts, 0)) == ["four", "one\ntwo", "three"]
    assert pieces_of(texts, 1) == pieces_of(texts, 1)
    assert len({tuple(pieces_of(texts, seed)) for seed in range(20)}) == 6


def test_a_base_model_gets_beginnings(model) -> None:
    (ids,) = prompts_of(model, ["Once upon a time there was a cat"], 5)
    assert ids == model.tokenizer.encode("Once upon a time there was a cat")[:5]


def test_a_chat_model_gets_a_users_messages(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    folder = write_tiny_llama(tmp_path / "tiny", vocab=SIZE)
    tokenizer.save_pretrained(folder)
    model = load_text_model(str(folder), progress=False)
    text = "the cat sat on the mat"
    (ids,) = prompts_of(model, [text], 3)
    cut = model.tokenizer.decode(model.tokenizer.encode(text, add_special_tokens=False)[:3])
    assert ids == build_prompt(model.tokenizer, model.config, cut)
    assert cut != text
