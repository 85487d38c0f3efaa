"""Vocabularies of the kinds that GGUF files bring, trained on a few lines in many scripts."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ipex_lookahead.tokenization.sentencepiece_model import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, read_model

LINES = [
    "The cat sat on the mat, and it's John's; we'll see what they've done. I'M HERE, DON'T GO!",
    "In 2024 there were 1234567 balls at 3.14 each, 42% of 9,999 – that's $1,000.00 or 50 €.",
    "def main(argv: list[str]) -> int:\n    print(f'{x!r}')  # comment\n\n\n\treturn 0\n",
    "camelCaseWord HTTPServer XMLHttpRequest iPhone McDonald's  two  spaces   three    four",
    "Быстрая лиса прыгает через ленивую собаку. ЁЖ и ёж, 15 раз!",
    "敏捷的棕色狐狸跳过懒狗。一二三,四五六!日本語のテキスト、カタカナも。한국어 문장도 있습니다.",
    "नमस्ते दुनिया, यह एक वाक्य है। สวัสดีชาวโลก مرحبا بالعالم שלום עולם ١٢٣ ४५६",
    "Ünïcödé çà et là, naïve façade, Straße, ǅungla, ﬁne, ½ ⅔ Ⅷ ² ³ ª º",
    "emoji 🙂🙃 👩‍👩‍👧 🇩🇪 ❤️ → ∑ ∫ √ ≤ ≥ ± × ÷ © ™ \u00a0nbsp\u2003em\u200bzero",
    '{\'key\': [1, 2, 3], "a\\b": null} <html><body class="x">&amp;</body></html>\r\n\r\n\t\t#!/bin/sh',
] * 3
TEXTS = [
    *dict.fromkeys(LINES),
    *("", " ", "  ", "\n", "\n\n\n", " \n ", "\t", "a", " a", "a ", "  a  ", "1", "12", "123", "1234", "12345 678"),
    *("it's It'S IT'S it’s 'tis 'llama o'clock", "don't\nwon't", "x\r\ny\r\rz", "a\n\n b\n  c\n\td", "...\n\n!!!\n"),
    *("a/b//c", "<|start|>user\nhi<|end|>\n<|start|>", "<|end|><|end|> x <|start|>  y", "[TOOL] a[TOOL]b  [TOOL]"),
    *("<|start", "|end|>", "<s>x</s> <unk> <0x41> <0x0A>", "▁▁ literal ▁", "\u0001\u007f"),
    *("é" * 30, " " * 33 + "x", "ab" * 40),
]  # fmt: skip
SPECIAL, ORDINARY = ("<|start|>", "<|end|>"), ("[TOOL]",)


@lru_cache
def byte_level() -> dict[str, Any]:
    """GGUF metadata of a byte-level BPE whose merges cross every border between words, so that each cut shows in ids.

    Its regular tokens come first, as in the files of these families, then control and user-defined tokens.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1400, initial_alphabet=alphabet, show_progress=False, max_token_length=12)
    core.train_from_iterator(LINES, trainer)
    return _bpe(core, "gpt2")


@lru_cache
def spelled() -> dict[str, Any]:
    """GGUF metadata of a BPE in Gemma's way: "▁" for spaces, bytes as pieces, no cuts."""
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    octets = [f"<0x{i:02X}>" for i in range(256)]
    runs = ["\n" * n for n in range(1, 6)]
    trainer = trainers.BpeTrainer(
        vocab_size=1400, special_tokens=["<unk>", *octets, *runs], show_progress=False, max_token_length=12
    )
    core.train_from_iterator([part for line in LINES for part in line.split("\n")], trainer)
    made = _bpe(core, "gemma4")
    types = made["tokenizer.ggml.token_type"]
    types[0] = UNKNOWN
    types[1:257] = [BYTE] * 256
    del made["tokenizer.ggml.pre"]
    return {**made, "tokenizer.ggml.unknown_token_id": 0}


def _bpe(core: Tokenizer, kind: str) -> dict[str, Any]:
    model = json.loads(core.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), *SPECIAL, *ORDINARY]
    regular = len(model["vocab"])
    types = [NORMAL] * regular + [CONTROL] * len(SPECIAL) + [USER_DEFINED] * len(ORDINARY)
    return {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        "tokenizer.ggml.bos_token_id": regular,
        "tokenizer.ggml.eos_token_id": regular + 1,
        "tokenizer.ggml.add_bos_token": False,
    }


@lru_cache
def sentencepiece_model(dummy_prefix: bool) -> bytes:
    """A SentencePiece BPE model with byte fallback; without a dummy prefix, as Gemma's, runs of spaces are symbols."""
    model = io.BytesIO()
    runs = [] if dummy_prefix else ["▁" * n for n in range(2, 5)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=1100,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=dummy_prefix,
        control_symbols=list(SPECIAL),
        user_defined_symbols=[*ORDINARY, *runs],
        minloglevel=2,
        hard_vocab_limit=False,
    )
    return model.getvalue()


def pieces(dummy_prefix: bool) -> dict[str, Any]:
    """The same as GGUF metadata, runs of spaces spelled with spaces, as converters write them."""
    model = read_model(sentencepiece_model(dummy_prefix), "tokenizer.model")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [p.text.replace("▁", " ") if p.type == USER_DEFINED else p.text for p in model.pieces],
        "tokenizer.ggml.scores": [p.score for p in model.pieces],
        "tokenizer.ggml.token_type": [p.type for p in model.pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": dummy_prefix,
    }


def write_gguf(path: Path, metadata: dict[str, Any], architecture: str = "llama", name: str = "tiny") -> Path:
    """A file of the metadata alone, which llama.cpp opens for its vocabulary."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
