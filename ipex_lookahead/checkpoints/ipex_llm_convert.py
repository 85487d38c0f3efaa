"""Conversion of a folder saved by ipex-llm from pickles to safetensors, byte for byte, without running any code."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path

from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.ipex_llm import is_ipex_llm
from ipex_lookahead.checkpoints.safetensors import INDEX, MAX_INDEX_BYTES, MAX_SHARDS, SINGLE
from ipex_lookahead.checkpoints.torch_pickle import TorchFile, chunks
from ipex_lookahead.errors import InputError, ModelFormatError, SaveError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.files.temporary import put_in_place, temporary_folder

PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
Progress = Callable[[int, int], None]
"""Callback that receives the bytes written so far and the total number of bytes."""

_SHARD = re.compile(r"pytorch_model-[0-9]{1,5}-of-[0-9]{1,5}\.bin", re.ASCII)
_LEFT_OUT = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".py", ".safetensors", ".index.json")
_MAX_COPIED_BYTES = 256 << 20
"""Larger files are not copied; files of a tokenizer are smaller."""


def convert_ipex_llm(
    folder: str | PathLike[str], new: str | PathLike[str], *, progress: Progress | None = None
) -> Path:
    """Copy a folder of ipex-llm with its weights in safetensors; return the new folder.

    Tokenizer, configs and license are copied, Python files are not. Takes about 20 MB of memory.

    Args:
        folder: a folder written by ipex-llm's ``save_low_bit``.
        new: target folder; must not exist or be empty.
        progress: see :data:`Progress`.

    Raises:
        InputError: if ``folder`` is not a folder of ipex-llm with pickles, or ``new`` exists.
        ModelFormatError: if a pickle is damaged or holds anything other than a dict of tensors.
        SaveError: if writing fails, for example because the disk is full.
    """
    source, target = given_path(folder), Path(os.path.realpath(given_path(new)))
    pickles = _pickles(source)
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target}: already exists", hint="choose a new folder")
    files: list[TorchFile] = []
    try:
        for name in pickles:
            files.append(TorchFile(source / name))
        _check_names(files)
        with temporary_folder(target) as temporary:
            _write(files, temporary, progress)
            _copy_rest(source, temporary)
            put_in_place(temporary, target)
    except OSError as error:
        raise SaveError(f"{target}: could not be written: {error.strerror or error}") from error
    finally:
        for file in files:
            file.close()
    return target


def _pickles(folder: Path) -> list[str]:
    """Return the names of the files with the weights; raise InputError if there is nothing to convert."""
    config = folder / "config.json"
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", hint="give the folder that ipex-llm's save_low_bit wrote")
    if not os.path.exists(config) or not is_ipex_llm(folder, read_json(config)):
        raise InputError(f"{folder}: was not written by ipex-llm's save_low_bit", hint="check the path")
    if os.path.exists(folder / PICKLE):
        return [PICKLE]
    if not os.path.exists(folder / PICKLE_INDEX):
        raise InputError(
            f"{folder}: has neither {PICKLE} nor {PICKLE_INDEX}; there is nothing to convert",
            hint=f"load the folder directly: {folder}" if os.path.exists(folder / SINGLE) else "",
        )
    index = read_json(folder / PICKLE_INDEX, limit=MAX_INDEX_BYTES, max_depth=4)
    places = index.get("weight_map")
    if not isinstance(places, JsonObject) or not places:
        raise ModelFormatError(folder / PICKLE_INDEX, "weight_map", None, "must be an object of tensors and file names")
    for name, shard in places.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise ModelFormatError(
                folder / PICKLE_INDEX, name[:200], places.at[name],
                f"is in {shard!r:.100}; the name of a shard must be like pytorch_model-1-of-2.bin",
            )  # fmt: skip
    shards = sorted(set(places.values()))
    if len(shards) > MAX_SHARDS:
        raise ModelFormatError(
            folder / PICKLE_INDEX, "weight_map", None, f"names {len(shards)} shards; the maximum is {MAX_SHARDS}"
        )
    return shards


def _check_names(files: Iterable[TorchFile]) -> None:
    seen: dict[str, Path] = {}
    for file in files:
        for name in file.tensors:
            if name in seen:
                raise ModelFormatError(file.path, name, None, f"is in {seen[name].name} as well")
            if name == "__metadata__":
                raise ModelFormatError(file.path, name, None, "is not allowed as a name in safetensors")
            seen[name] = file.path


def _write(files: list[TorchFile], target: Path, progress: Progress | None) -> None:
    total = sum(tensor.nbytes for file in files for tensor in file.tensors.values())
    done, places = 0, {}
    for number, file in enumerate(files):
        name = SINGLE if len(files) == 1 else f"model-{number + 1:05}-of-{len(files):05}.safetensors"
        places.update(dict.fromkeys(file.tensors, name))
        header, end = {}, 0
        for tensor_name, tensor in file.tensors.items():
            begin, end = end, end + tensor.nbytes
            header[tensor_name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (target / name).open("xb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for tensor_name, tensor in file.tensors.items():
                for chunk in chunks(file, tensor, tensor_name):
                    out.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
            out.flush()
            os.fsync(out.fileno())
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (target / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _copy_rest(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.endswith(_LEFT_OUT) and path.stat().st_size <= _MAX_COPIED_BYTES:
            shutil.copyfile(path, target / path.name)
