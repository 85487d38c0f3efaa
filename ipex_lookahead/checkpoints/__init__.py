"""Where weights come from: one kind of checkpoint a file, all behind the same protocol.

Nothing in a checkpoint is ever executed. Any bytes give a correct checkpoint, or ModelFormatError (file, field, offset)
or UnsupportedModelError; sizes are checked against the file before memory is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from ipex_lookahead.checkpoints.base import Checkpoint, TensorInfo
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.errors import InputError, ModelFormatError

__all__ = ["READERS", "Checkpoint", "TensorInfo", "open_checkpoint"]

READERS: dict[str, Callable[[Path], Checkpoint]] = {
    "gguf": GgufCheckpoint,
    "safetensors": SafetensorsCheckpoint,
}
"""Kind of checkpoint to what opens it."""


def open_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Open whatever checkpoint lies at ``path``: a GGUF file, or a folder.

    Raises InputError if there is nothing to open, ModelFormatError or UnsupportedModelError if it cannot be used.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        if (path / "config.json").exists():
            return READERS["safetensors"](path)
        raise ModelFormatError(path, "config.json", None, "is missing from the folder")
    if path.exists():
        return READERS["gguf"](path)
    raise InputError(f"{path}: there is no such file or folder")
