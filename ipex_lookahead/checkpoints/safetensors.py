"""Hugging Face folders: ``config.json`` and float safetensors, one file or shards with an index."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.config_json import read_config, read_generation_config, read_json
from ipex_lookahead.checkpoints.finite import first_not_finite
from ipex_lookahead.checkpoints.hparams import shown
from ipex_lookahead.checkpoints.safetensors_reader import MAX_NAME, SafetensorsFile, StoredTensor
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.safe_json import JsonObject

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 << 20
MAX_SHARDS = 512

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors", re.ASCII)
_FORMATS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_CODES: dict[str, type[np.generic]] = {"fp32": np.float32, "fp16": np.uint16, "bf16": np.uint16}


class SafetensorsCheckpoint:
    """A folder with float weights. See :class:`ipex_lookahead.checkpoints.base.Checkpoint`."""

    def __init__(self, path: str | PathLike[str], *, other_family: bool = False) -> None:
        """Open and validate the config, the index and every header.

        ``other_family`` is for a family that only transformers knows: ``config`` and ``generation_config`` stay empty,
        and tensors may be of any kind. Raises ModelFormatError or UnsupportedModelError; reads no tensor yet.
        """
        self.path = Path(path)
        self.config: dict[str, Any] = {}
        self.generation_config: dict[str, Any] = {}
        if not other_family:
            self.config = read_config(self.path / "config.json")
            settings = self.path / "generation_config.json"
            self.generation_config = read_generation_config(settings, self.config["vocab_size"])
        self._files: list[SafetensorsFile] = []
        self._tensors: dict[str, tuple[SafetensorsFile, StoredTensor]] = {}
        try:
            self._open()
            for name, (file, tensor) in () if other_family else self._tensors.items():
                check_kind(file, name, tensor)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        if os.path.exists(self.path / SINGLE):
            self._add(self.path / SINGLE)
        elif os.path.exists(self.path / INDEX):
            self._open_shards(self.path / INDEX)
        else:
            raise _no_weights(self.path)
        if not self._tensors:
            raise ModelFormatError(self.path, "tensors", None, "the checkpoint holds no tensor")

    def _add(self, path: Path) -> SafetensorsFile:
        file = SafetensorsFile(path)
        self._files.append(file)
        for name, tensor in file.tensors.items():
            if name in self._tensors:
                other = self._tensors[name][0].path.name
                raise ModelFormatError(path, name, tensor.entry, f"is in {other} too")
            self._tensors[name] = (file, tensor)
        return file

    def _open_shards(self, index: Path) -> None:
        raw = read_json(index, limit=MAX_INDEX_BYTES, max_depth=4)
        weight_map = raw.get("weight_map")
        if not isinstance(weight_map, JsonObject) or not weight_map:
            raise ModelFormatError(
                index, "weight_map", raw.at.get("weight_map"), "must be an object of tensor names and file names"
            )
        shards: dict[str, SafetensorsFile] = {}
        for name, shard in weight_map.items():
            if not 0 < len(name) <= MAX_NAME:
                raise ModelFormatError(
                    index,
                    "weight_map",
                    weight_map.at[name],
                    f"names a tensor {shown(name)}: 1 to {MAX_NAME} characters",
                )
            # A name only: a path could lead out of the folder, another extension to a format that runs code.
            if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard) or ".." in shard:
                raise ModelFormatError(
                    index,
                    name,
                    weight_map.at[name],
                    f"is in {shown(shard)}; a shard is a plain file name that ends in .safetensors",
                )
            if shard not in shards:
                if len(shards) == MAX_SHARDS:
                    raise ModelFormatError(
                        index, name, weight_map.at[name], f"is in shard {MAX_SHARDS + 1}; at most {MAX_SHARDS} are read"
                    )
                if not os.path.exists(self.path / shard):
                    raise ModelFormatError(
                        index,
                        name,
                        weight_map.at[name],
                        f"is in {shard}, which is not in the folder",
                        hint="the checkpoint is incomplete: download it again",
                    )
                shards[shard] = self._add(self.path / shard)
            if name not in shards[shard].tensors:
                raise ModelFormatError(index, name, weight_map.at[name], f"is not in {shard}")
        for name, (file, tensor) in self._tensors.items():
            if name not in weight_map:
                raise ModelFormatError(file.path, name, tensor.entry, f"is not listed in {INDEX}")

    def names(self) -> Sequence[str]:
        """Tensor names, as in the files."""
        return list(self._tensors)

    def info(self, name: str) -> TensorInfo:
        """Shape and format of a tensor. Raises ModelFormatError if there is none of that name."""
        tensor = self._find(name)[1]
        return TensorInfo(tensor.shape, _FORMATS.get(tensor.dtype, tensor.dtype.lower()))

    def read(self, name: str) -> PackedWeight:
        """The tensor as it is in the file; takes the tensor's own memory and no more.

        Raises ModelFormatError for NaN and infinity, and if the file has been cut meanwhile.
        """
        file, tensor = self._find(name)
        return read_float(file, name, tensor)

    def _find(self, name: str) -> tuple[SafetensorsFile, StoredTensor]:
        if name not in self._tensors:
            raise ModelFormatError(self.path, name, None, "there is no tensor of this name")
        return self._tensors[name]

    def text_tokenizer(self) -> Any | None:
        """The folder's tokenizer, or None where it carries none."""
        from ipex_lookahead.tokenization.folder import text_from_folder

        return text_from_folder(self.path, self.config)

    def close(self) -> None:
        """Release the files. Tensors already read stay valid."""
        for file in self._files:
            file.close()


def read_float(file: SafetensorsFile, name: str, tensor: StoredTensor) -> PackedWeight:
    """A float tensor as it is in the file.

    Raises ModelFormatError for NaN and infinity, and if the file has been cut meanwhile.
    """
    kind = _FORMATS[tensor.dtype]
    values: npt.NDArray[np.generic] = np.empty(tensor.shape, _CODES[kind])
    file.file.read_into(tensor.offset, values, name)
    if (bad := first_not_finite(values, kind)) is not None:
        at = tensor.offset + bad * values.itemsize
        raise ModelFormatError(file.path, name, at, f"value {bad} is NaN or infinite")
    return PackedWeight(kind, tensor.shape, values)


def check_kind(file: SafetensorsFile, name: str, tensor: StoredTensor, *, most_dimensions: int = 2) -> None:
    """Refuse a tensor that is no float vector or matrix. Raises UnsupportedModelError or ModelFormatError."""
    if tensor.dtype not in _FORMATS:
        raise UnsupportedModelError(
            f"{file.path}: tensor {name} has dtype {tensor.dtype}; the supported dtypes are {', '.join(_FORMATS)}",
            hint="use the original float checkpoint",
        )
    if not 1 <= len(tensor.shape) <= most_dimensions:
        raise UnsupportedModelError(
            f"{file.path}: tensor {name} has shape {list(tensor.shape)}; vectors and matrices are supported"
        )
    if 0 in tensor.shape:
        raise ModelFormatError(file.path, name, tensor.entry, f"has shape {list(tensor.shape)}: it holds no value")


def refuse_without_safetensors(folder: Path) -> None:
    """Raise the error of a folder that holds neither ``model.safetensors`` nor its index."""
    if not os.path.exists(folder / SINGLE) and not os.path.exists(folder / INDEX):
        raise _no_weights(folder)


def _no_weights(folder: Path) -> Exception:
    """The error for a folder without weights that can be read; it names what lies there instead."""
    present = sorted(os.listdir(folder))
    pickles = [name for name in present if name.endswith(_PICKLES) and not name.startswith("training_args")]
    if pickles:
        return UnsupportedModelError(
            f"{folder}: the weights are in {pickles[0]}, a pickle, which can run code when it is read and is never "
            f"opened here; {SINGLE} or {INDEX} is needed",
            hint="convert it on a machine you can lose: in Python, "
            "transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)",
        )
    others = [name for name in present if name.endswith((".safetensors", ".gguf"))]
    return ModelFormatError(
        folder,
        SINGLE,
        None,
        f"is missing, and so is {INDEX}" + (f"; found {', '.join(others[:3])}" if others else ""),
        hint=f"give the GGUF file itself: {folder / others[0]}" if others and others[0].endswith(".gguf") else "",
    )
