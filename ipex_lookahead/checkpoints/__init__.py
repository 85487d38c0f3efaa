"""Checkpoint readers: one file per kind, all behind the ``Checkpoint`` protocol.

No code in a checkpoint is ever executed. Any input gives a correct checkpoint, ModelFormatError (file, field, offset)
or UnsupportedModelError. Sizes are checked against the file before memory is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from ipex_lookahead.checkpoints.adapters import given_as_model, is_adapter, warn_of_adapters
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
"""Kind of checkpoint -> reader."""


def open_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Open a GGUF file, a Hugging Face folder, or a folder saved by ipex-llm or by this package.

    The kind is detected from the content, never from the name. A warning names adapters next to the model.

    Raises:
        InputError: if there is nothing to open.
        ModelFormatError: if the checkpoint is invalid.
        UnsupportedModelError: if the model is not supported, or ``path`` is an adapter.
    """
    kind, path = kind_of(path)
    opened = READERS[kind](path)
    warn_of_adapters(path)
    return opened


def kind_of(path: str | PathLike[str]) -> tuple[str, Path]:
    """Return the kind of the checkpoint at ``path`` (a key of ``READERS``) and the folder or GGUF file to open.

    Raises as :func:`open_checkpoint`.
    """
    path = given_path(path)
    return _kind_of_folder(path) if os.path.isdir(path) else ("gguf", _checked_file(path))


def low_bit_folder(path: str | PathLike[str]) -> Path:
    """Return the path of a folder saved by ``save_low_bit`` here or in ipex-llm; raise InputError for any other."""
    folder = given_path(path)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", hint=f"write one with {arg('model.save_low_bit(folder)')}")
    kind, _ = kind_of(folder)
    if kind not in ("low_bit", "ipex_llm"):
        raise InputError(
            f"{folder} was not written by {arg('save_low_bit')}, so the format of its weights is not recorded",
            hint=f"use from_pretrained, with {arg('load_in_low_bit', 'sym_int4')} to quantize the weights",
        )
    return folder


def family_of(path: str | PathLike[str]) -> str | None:
    """Return the ``model_type`` of a folder's config; None for GGUF files and for configs without one."""
    config = given_path(path) / "config.json"
    found = read_json(config).get("model_type") if os.path.exists(config) else None
    return found if isinstance(found, str) else None


def open_other_family(path: str | PathLike[str]) -> Checkpoint:
    """Open a folder of a family that only transformers supports; ``config`` and ``spec`` are empty."""
    path = given_path(path)
    raw = read_json(path / "config.json")
    if MARKER in raw:
        return LowBitCheckpoint(path, other_family=True)
    if is_ipex_llm(path, raw):
        raise UnsupportedModelError(
            f"{path}: was saved by ipex-llm, for a family that only transformers supports: the shapes of its packed"
            " matrices are unknown",
            hint=f"load the original checkpoint with {arg('load_in_low_bit')} and save it again with"
            f" {arg('save_low_bit')}",
        )
    return SafetensorsCheckpoint(path, other_family=True)


def _kind_of_folder(folder: Path) -> tuple[str, Path]:
    if is_adapter(folder):
        raise given_as_model(folder)
    config = folder / "config.json"
    if os.path.exists(config):
        raw = read_json(config)
        if is_ipex_llm(folder, raw):
            return "ipex_llm", folder
        return "low_bit" if MARKER in raw else "safetensors", folder
    # The parts of a split model count as one file, represented by the first part; the reader reports it if missing.
    files = sorted({first_part(name).name for name in _listed(folder) if name.endswith(".gguf")})
    files = [name for name in files if not is_drafter(name)] or files
    if len(files) > 1:
        files = [name for name in files if not is_adapter(folder / name)] or files
    if len(files) == 1:
        return "gguf", folder / files[0]
    if files:
        raise InputError(
            f"{folder}: holds {len(files)} GGUF files ({', '.join(files[:3])}{', ...' if files[3:] else ''}); "
            "give the path of one of them",
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
        raise InputError(f"{path}: no such file or folder", hint="check the path")
    if path.suffix in (".safetensors", ".json"):
        raise InputError(f"{path}: is a single file of a checkpoint", hint=f"give the folder: {path.parent}")
    return path
