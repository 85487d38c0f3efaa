"""A folder's tokenizer saved as it was found: where transformers, which writes tokenizers, is not installed."""

from __future__ import annotations

import shutil
from pathlib import Path

from ipex_lookahead.extras import need_torch

FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates",
)
"""What ``folder.py`` reads, and what transformers reads beside."""


class AsFound:
    """The tokenizer files of a checkpoint's folder, to be copied.

    Args:
        source: the folder. Raises MissingPackageError for a file: what GGUF says of a tokenizer is written anew, by
            transformers.
    """

    def __init__(self, source: Path) -> None:
        if not source.is_dir():
            need_torch(f"saving the tokenizer of {source.name} as a folder's")
        self._source = source

    def save_pretrained(self, folder: str) -> None:
        """Copy them, by the name that transformers' tokenizers have for saving. Raises OSError where that fails."""
        for name in FILES:
            found = self._source / name
            if found.is_dir():
                shutil.copytree(found, Path(folder) / name, copy_function=shutil.copyfile)
            elif found.exists():
                shutil.copyfile(found, Path(folder) / name)
