"""Where weights come from: one kind of checkpoint a file, all behind the same protocol.

Nothing in a checkpoint is ever executed. Any bytes give a correct checkpoint, or ModelFormatError (file, field, offset)
or UnsupportedModelError; sizes are checked against the file before memory is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from ipex_lookahead.checkpoints.base import Checkpoint, TensorInfo
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint
from ipex_lookahead.checkpoints.gguf_parts import first_part
from ipex_lookahead.checkpoints.ipex_llm import IpexLlmCheckpoint, is_ipex_llm
from ipex_lookahead.checkpoints.low_bit import MARKER, LowBitCheckpoint
from ipex_lookahead.checkpoints.low_bit_save import save
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.errors import InputError, ModelFormatError, UnsupportedModelError, arg
from ipex_lookahead.files.paths import given_path, is_drafter

__all__ = [
    "READERS",
    "Checkpoint",
    "GgufCheckpoint",
    "IpexLlmCheckpoint",
    "LowBitCheckpoint",
    "SafetensorsCheckpoint",
    "TensorInfo",
    "family_of",
    "kind_of",
    "low_bit_folder",
    "open_checkpoint",
    "open_other_family",
    "save",
]

READERS: dict[str, Callable[[Path], Checkpoint]] = {
    "gguf": GgufCheckpoint,
    "ipex_llm": IpexLlmCheckpoint,
    "low_bit": LowBitCheckpoint,
    "safetensors": SafetensorsCheckpoint,
}
"""Kind of checkpoint to what opens it."""


def open_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Open whatever checkpoint lies at ``path``: a GGUF file, a Hugging Face folder, one of ipex-llm's, or ours.

    What it is follows from what is there, never from its name. Raises InputError if there is nothing to open,
    ModelFormatError or UnsupportedModelError if it cannot be used.
    """
    kind, path = kind_of(path)
    return READERS[kind](path)


def kind_of(path: str | PathLike[str]) -> tuple[str, Path]:
    """What kind of checkpoint lies at ``path``, a key of ``READERS``, and where: the GGUF file itself, or the folder.

    Raises as :func:`open_checkpoint`.
    """
    path = given_path(path)
    return _kind_of_folder(path) if os.path.isdir(path) else ("gguf", _checked_file(path))


def low_bit_folder(path: str | PathLike[str]) -> Path:
    """A folder that ``save_low_bit`` wrote, ours or ipex-llm's. Raises InputError for none, and for any other."""
    folder = given_path(path)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: there is no such folder", hint=f"write one with {arg('model.save_low_bit(folder)')}"
        )
    kind, _ = kind_of(folder)
    if kind not in ("low_bit", "ipex_llm"):
        raise InputError(
            f"{folder} was not written by {arg('save_low_bit')}, so nothing in it says how it is to be loaded",
            hint=f"from_pretrained with {arg('load_in_low_bit', 'sym_int4')} quantises it; without, it is loaded as is",
        )
    return folder


def family_of(path: str | PathLike[str]) -> str | None:
    """The ``model_type`` of a folder's config; None for GGUF files, and for folders without a config that says."""
    config = given_path(path) / "config.json"
    found = read_json(config).get("model_type") if os.path.exists(config) else None
    return found if isinstance(found, str) else None


def open_other_family(path: str | PathLike[str]) -> Checkpoint:
    """The tensors of a folder of a family that only transformers knows; ``config`` and the like stay empty."""
    path = given_path(path)
    raw = read_json(path / "config.json")
    if MARKER in raw:
        return LowBitCheckpoint(path, other_family=True)
    if is_ipex_llm(path, raw):
        raise UnsupportedModelError(
            f"{path}: was saved by ipex-llm, and is of a family that only transformers knows: the shapes of its packed"
            " matrices are not known here",
            hint=f"load the original checkpoint with {arg('load_in_low_bit')} and save it again with"
            f" {arg('save_low_bit')}",
        )
    return SafetensorsCheckpoint(path, other_family=True)


def _kind_of_folder(folder: Path) -> tuple[str, Path]:
    config = folder / "config.json"
    if os.path.exists(config):
        raw = read_json(config)
        if is_ipex_llm(folder, raw):
            return "ipex_llm", folder
        return "low_bit" if MARKER in raw else "safetensors", folder
    # The parts of a split model are one: each stands for its first, which the reader misses where it is not there.
    files = sorted({first_part(name).name for name in _listed(folder) if name.endswith(".gguf")})
    files = [name for name in files if not is_drafter(name)] or files
    if len(files) == 1:
        return "gguf", folder / files[0]
    if files:
        raise InputError(
            f"{folder}: holds {len(files)} GGUF files ({', '.join(files[:3])}{', ...' if files[3:] else ''}); "
            "give the one to open",
            hint=f"for example {folder / files[0]}",
        )
    raise ModelFormatError(
        folder, "config.json", None, "is missing from the folder", hint="give a Hugging Face folder or a GGUF file"
    )


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise ModelFormatError(folder, "folder", None, f"cannot be listed: {error.strerror}") from None


def _checked_file(path: Path) -> Path:
    if not os.path.exists(path):
        raise InputError(f"{path}: there is no such file or folder", hint="check the path")
    if path.suffix in (".safetensors", ".json"):
        raise InputError(f"{path}: is one file of a checkpoint", hint=f"give the folder: {path.parent}")
    return path
