"""Tiny tokenizers, trained here on a few sentences."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ipex_lookahead.tokenization import chat_template
from ipex_lookahead.tokenization.sentencepiece_model import SentencePieceModel, read_model

SENTENCES = [
    "Once upon a time there was a little cat named Tim, and Tim liked to play in the sun.",
    "The cat saw a big red ball; the ball was on the mat, and the mat was in the house.",
    "It's 1234567890 o'clock. Don't worry, we'll see 42 balls and 7 cats at 3.14!",
    "def f(x):\n    return x ** 2  # comment\n\n\nclass A:\n\tpass",
    "aaaaaaaa bbbbbbb aaaa bb aa a banana bandana",
    "café naïve über straße — “quotes” …",
]
TEXTS = [
    *SENTENCES,
    "",
    " ",
    "   leading and trailing   ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "日本語 🙂 e\u0301\u0000\u200b",
    "tabs\tand\r\nlines\n\n\n",
    "<s> not special </s> <unk> <0x41>",
    "1234 12 1",
    "▁ and ▁▁",
]
CHATML = (
    "{% for m in messages %}{{ '<|start|>' + m['role'] + '\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def renderer_for_all() -> Iterator[chat_template.Renderer]:
    made = chat_template.Renderer()
    yield made
    made.close()


@pytest.fixture
def kept_renderer(renderer_for_all: chat_template.Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are rendered in processes forked from one that is kept, as a server has it: in 3 ms, not in 80."""
    answer = chat_template._answer
    monkeypatch.setattr(chat_template, "_answer", lambda question, own: answer(question, own or renderer_for_all))


@pytest.fixture(scope="session")
def bpe_core() -> Tokenizer:
    """A byte-level BPE of 400 tokens in GPT-2's way, two control tokens first."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(SENTENCES * 3, trainer)
    return core


@pytest.fixture
def bpe_metadata(bpe_core: Tokenizer) -> dict[str, Any]:
    """The same as GGUF metadata, with a chat template."""
    import json

    model = json.loads(bpe_core.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def train_sentencepiece(**options: Any) -> bytes:
    model = io.BytesIO()
    settings = {
        "vocab_size": 420,
        "model_type": "bpe",
        "byte_fallback": True,
        "character_coverage": 1.0,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "minloglevel": 2,
        "hard_vocab_limit": False,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3), model_writer=model, **{**settings, **options}
    )
    return model.getvalue()


@pytest.fixture(scope="session")
def spm_bytes() -> bytes:
    """A SentencePiece BPE model with byte fallback, as Llama-2's."""
    return train_sentencepiece()


@pytest.fixture(scope="session")
def spm_variants() -> dict[str, bytes]:
    """Models of other kinds: no byte fallback, unigram, with a normalisation map, with symbols of the user."""
    return {
        "no bytes": train_sentencepiece(byte_fallback=False, vocab_size=160),
        "unigram": train_sentencepiece(model_type="unigram", vocab_size=380),
        "normalised": train_sentencepiece(normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True),
        "no prefix": train_sentencepiece(add_dummy_prefix=False),
        "user symbols": train_sentencepiece(user_defined_symbols=["[INST]", "ball"]),
    }


def metadata_of(model: SentencePieceModel) -> dict[str, Any]:
    """GGUF metadata that says what a SentencePiece model says."""
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece.text for piece in model.pieces],
        "tokenizer.ggml.scores": [piece.score for piece in model.pieces],
        "tokenizer.ggml.token_type": [piece.type for piece in model.pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": model.add_dummy_prefix,
        "tokenizer.ggml.remove_extra_whitespaces": model.remove_extra_whitespaces,
    }
    if model.precompiled_charsmap:
        metadata["tokenizer.ggml.precompiled_charsmap"] = list(model.precompiled_charsmap)
    return metadata


@pytest.fixture
def spm_metadata(spm_bytes: bytes) -> dict[str, Any]:
    return metadata_of(read_model(spm_bytes, "tokenizer.model"))
