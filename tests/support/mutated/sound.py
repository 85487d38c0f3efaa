"""What mutations begin with: sound files, and values that somebody might put into them."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ipex_lookahead.tokenization.sentencepiece_model import read_model

ROWS = 512
SENTENCES = [
    "Once upon a time there was a little cat named Tim.",
    "It's 1234 o'clock: café, straße — aaaa bb a banana.",
]
CHATML = "{% for m in messages %}{{ '<|start|>' + m['role'] + m['content'] + '<|end|>' }}{% endfor %}"

SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 255, 511, 512, 513, 2**16, 2**20, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63)),
    *(10**60, 1e308, -1e308, 5e-324, 0.0, -0.0, 1.5, "", " ", "a", "\0", "\ufdfa", "▁", "é" * 3, "<s>", "x" * 5000),
    *("many", [], {}, [[]], [1], ["a"], {"a": 1}, {"content": "a"}, {"id": "A"}, {"String": "a"}, {"Regex": "(a+)+$"}),
)


@dataclass
class Case:
    """One attack. ``files`` go into a folder; ``metadata`` is a GGUF's."""

    number: int
    kind: str
    done: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    slow: bool = False

    def __str__(self) -> str:
        return f"case {self.number} ({self.kind}): {'; '.join(self.done)}"


@lru_cache
def byte_pair() -> str:
    """A ``tokenizer.json`` of 300 tokens, two of them special."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|start|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(SENTENCES, trainer)
    return core.to_str()


@lru_cache
def pieces(kind: str) -> bytes:
    """A ``tokenizer.model``: "bpe", "unigram", or "rules" that rewrite text."""
    model = io.BytesIO()
    rules = {"normalization_rule_name": "identity"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 5),
        model_writer=model,
        vocab_size=300,
        model_type="unigram" if kind == "unigram" else "bpe",
        byte_fallback=kind != "rules",
        user_defined_symbols=["cat", "[INST]"],
        hard_vocab_limit=False,
        minloglevel=2,
        **rules,
    )
    if kind != "rules":
        return model.getvalue()
    sound = read_model(model.getvalue(), "rules")
    sound.precompiled_charsmap = charsmap()
    return sound.serialize()


def charsmap() -> bytes:
    """A map of "a" to "bb": a root, the node of "a", and its text's place."""
    units = [0] * 512
    units[0] = 256 << 10  # the root's children lie from 256 on
    units[256 ^ 0x61] = 0x61 | 1 << 8 | (256 ^ 0x61 ^ 2) << 10  # "a", a leaf; its value is in unit 2
    units[2] = 1 << 31
    return struct.pack("<I", 2048) + struct.pack("<512I", *units) + b"bb\0"
