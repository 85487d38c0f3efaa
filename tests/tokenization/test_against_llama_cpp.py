"""Ids equal llama.cpp's on vocabulary-only files: its ``llama-tokenize`` on the same file, one process for each text.

Runs where the program is found, on the path or in ``IPEX_LOOKAHEAD_LLAMA_TOKENIZE``. Texts are in Unicode form C, to
which some of the models' own tokenizers bring them first, and llama.cpp none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.sentencepiece_model import CONTROL
from ipex_lookahead.tokenization.splitting import SPLITTINGS
from tests.support import vocabularies

PROGRAM = os.environ.get("IPEX_LOOKAHEAD_LLAMA_TOKENIZE") or shutil.which("llama-tokenize")
if not PROGRAM:
    missing = "llama.cpp's llama-tokenize is not on the path, nor named by IPEX_LOOKAHEAD_LLAMA_TOKENIZE"
    pytest.skip(missing, allow_module_level=True)

KINDS = list({splitting: name for name, splitting in reversed(SPLITTINGS.items())}.values())
"""A name of each way of splitting; the others are aliases."""

SIMPLER = {
    **dict.fromkeys(("tekken", "gpt-4o"), lambda text: any(unicodedata.category(c)[0] == "M" for c in text)
                    or any(unicodedata.category(c) in ("Lu", "Ll", "Lt") and not c.isascii() for c in text)),
    "deepseek-coder": lambda text: any(c.isspace() and not c.isascii() for c in text),
    "deepseek-llm": lambda text: any(c.isspace() and not c.isascii() for c in text)
                    or any(unicodedata.category(a)[0] == unicodedata.category(b)[0] == "N"
                           for a, b in pairwise(text)),
}  # fmt: skip
"""Texts for which llama.cpp writes a pattern in a simpler way than the model's own: cases by the Latin alphabet alone,
marks as no part of words; white space of ASCII alone; digits in runs where the model's own stand alone."""


def known_to_differ(pre: str, text: str) -> bool:
    return "ſ" in text or (pre in SIMPLER and SIMPLER[pre](text))


def theirs(file: Path, text: str) -> list[int]:
    prompt = file.with_suffix(".txt")
    prompt.write_bytes(text.encode("utf-8"))
    command = [str(PROGRAM), "-m", str(file), "--ids", "-f", str(prompt), "--log-disable"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
    ids: list[int] = json.loads(done.stdout.strip().splitlines()[-1])
    return ids


def metadata_of(kind: str) -> dict[str, Any]:
    """Metadata of a way of splitting, or of "gemma4", "llama", "gemma" and "phi3", which have none."""
    if kind in SPLITTINGS:
        return {**vocabularies.byte_level(), "tokenizer.ggml.pre": kind}
    if kind == "gemma4":  # llama.cpp adds the token whatever the file says
        return {**vocabularies.spelled(), "tokenizer.ggml.add_bos_token": True}
    made = vocabularies.pieces(dummy_prefix=kind != "gemma")
    if kind == "phi3":  # llama.cpp looks for that token in a model of that name
        for key, value in (("tokens", "<|endoftext|>"), ("scores", 0.0), ("token_type", CONTROL)):
            made[f"tokenizer.ggml.{key}"].append(value)
    return made


def pair(kind: str, folder: Path) -> tuple[Any, Path]:
    """Our tokenizer and the file for theirs, which knows Phi-3 by its name."""
    metadata = metadata_of(kind)
    file = vocabularies.write_gguf(folder / "x.gguf", metadata, name="phi-3" if kind == "phi3" else "tiny")
    return text_from_gguf({**metadata, "general.architecture": kind}, file), file


ALL = [*KINDS, "gemma4", "llama", "gemma", "phi3"]


@pytest.mark.parametrize("kind", ALL)
def test_texts_in_many_scripts(tmp_path: Path, kind: str) -> None:
    ours, file = pair(kind, tmp_path)
    compared = 0
    for text in vocabularies.TEXTS:
        text = unicodedata.normalize("NFC", text)
        if text and not known_to_differ(kind, text):
            assert ours.encode(text) == theirs(file, text), text
            compared += 1
    assert compared > 30


@pytest.mark.parametrize("name", sorted(set(SPLITTINGS) - set(KINDS)))
def test_aliases(tmp_path: Path, name: str) -> None:
    ours, file = pair(name, tmp_path)
    for text in ("It's 1234567 o'clock!\n\n  DON'T camelCase x/y {z}\r\n", "日本語 12 テキスト, 敏捷\n 34"):
        assert ours.encode(text) == theirs(file, text)


WORDS = st.sampled_from(
    ["the", " cat", "'s", "'S", "1", "23", "4567", " ", "  ", "\n", "\r\n", "\t", ".", "...", "!", "/", "_", "é",
     "日本", "語", "カ", "한국", "Ж", "ж", "हि", "न्दी", "ا", "٣", "🙂", "❤️", "\u00a0", "▁", "<|start|>", "<|end|>",
     "[TOOL]", "<|endoftext|>", "<s>", "A", "bC", "ª", "²", "½", "$", "{", "+", "\u3000", "。", "’"]
)  # fmt: skip


@pytest.mark.parametrize("kind", ALL)
def test_any_mixture(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    ours, file = pair(kind, tmp_path_factory.mktemp("mixture"))

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.filter_too_much])
    @given(st.lists(WORDS | st.characters(codec="utf-8", exclude_categories=("Cn", "Cs", "Co")), max_size=24))
    def equal(parts: list[str]) -> None:
        text = unicodedata.normalize("NFC", "".join(parts).replace("\0", ""))
        assume(text and not known_to_differ(kind, text))
        assert ours.encode(text) == theirs(file, text)

    equal()
