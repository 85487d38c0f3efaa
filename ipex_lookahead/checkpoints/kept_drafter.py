"""A head in files of its own, saved with its model: its files as they are, in a folder of the model's."""

from __future__ import annotations

import shutil
from pathlib import Path

from ipex_lookahead.checkpoints.gguf_parts import first_part
from ipex_lookahead.checkpoints.licence import copy_licence

KEPT = "drafter"
"""The folder, in the model's, that holds the head; it is found by itself when the model is loaded."""
_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")


def keep_drafter(source: Path, model: Path) -> None:
    """Copy a head into a model's folder: what of its folder is read, or its GGUF file. Raises OSError."""
    kept = model / KEPT
    kept.mkdir()
    if source.is_dir():
        files = [*source.glob("*.gguf")] if not (source / "config.json").exists() else []
        files = files or [file for pattern in _FILES for file in sorted(source.glob(pattern))]
    else:
        files = [file for file in source.parent.glob("*.gguf") if first_part(file) == first_part(source)]
    for file in files:
        shutil.copyfile(file, kept / file.name)
    copy_licence(source, kept)
