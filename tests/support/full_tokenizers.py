"""Tokenizers as a model's ``tokenizer`` has them: transformers' own."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf


def tokenizer_from_folder(path: Path, config: Mapping[str, Any]) -> PreTrainedTokenizerBase | None:
    built = text_from_folder(path, config)
    return None if built is None else built.for_transformers()


def tokenizer_from_gguf(metadata: Mapping[str, Any], file: str | PathLike[str]) -> PreTrainedTokenizerBase:
    return text_from_gguf(metadata, file).for_transformers()
