"""A folder that ipex-llm saved, its pickles made safetensors: the same tensors, byte for byte, and nothing is run."""

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
"""Called with the bytes written so far and the bytes in all."""

_SHARD = re.compile(r"pytorch_model-[0-9]{1,5}-of-[0-9]{1,5}\.bin", re.ASCII)
_LEFT_OUT = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".py", ".safetensors", ".index.json")
_MOST_COPIED = 256 << 20
"""Bytes of the largest file that goes along: a tokenizer's are smaller."""


def convert_ipex_llm(
    folder: str | PathLike[str], new: str | PathLike[str], *, progress: Progress | None = None
) -> Path:
    """Write a folder of ipex-llm's again with its weights in safetensors, and return the new folder.

    Tokenizer, configs and licence go along as they are; Python files do not. Takes the disk's space once more, and some
    20 MB of memory.

    Args:
        folder: written by ipex-llm's ``save_low_bit``.
        new: where to; must not exist, or be empty.
        progress: see :data:`Progress`.

    Raises:
        InputError: it is no folder of ipex-llm's with pickles, or ``new`` is something already.
        ModelFormatError: a pickle that is damaged, or is more than a dict of tensors.
        SaveError: the disk is full, or writing fails otherwise.
    """
    source, target = given_path(folder), Path(os.path.realpath(given_path(new)))
    pickles = _pickles(source)
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target}: is there already", hint="choose a new folder")
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
    """The files with the weights. Raises InputError where there is nothing to convert."""
    config = folder / "config.json"
    if not folder.is_dir() or not os.path.exists(config) or not is_ipex_llm(folder, read_json(config)):
        raise InputError(f"{folder}: is no folder that ipex-llm's save_low_bit wrote", hint="check the path")
    if os.path.exists(folder / PICKLE):
        return [PICKLE]
    if not os.path.exists(folder / PICKLE_INDEX):
        raise InputError(
            f"{folder}: holds neither {PICKLE} nor {PICKLE_INDEX}; there is nothing to convert",
            hint=f"load the folder as it is: {folder}" if os.path.exists(folder / SINGLE) else "",
        )
    index = read_json(folder / PICKLE_INDEX, limit=MAX_INDEX_BYTES, max_depth=4)
    places = index.get("weight_map")
    if not isinstance(places, JsonObject) or not places:
        raise ModelFormatError(folder / PICKLE_INDEX, "weight_map", None, "must be an object of tensors and file names")
    for name, shard in places.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise ModelFormatError(
                folder / PICKLE_INDEX, name[:200], places.at[name],
                f"is in {shard!r:.100}; a shard is called pytorch_model-1-of-2.bin",
            )  # fmt: skip
    shards = sorted(set(places.values()))
    if len(shards) > MAX_SHARDS:
        raise ModelFormatError(
            folder / PICKLE_INDEX, "weight_map", None, f"names {len(shards)} shards; {MAX_SHARDS} are read"
        )
    return shards


def _check_names(files: Iterable[TorchFile]) -> None:
    seen: dict[str, Path] = {}
    for file in files:
        for name in file.tensors:
            if name in seen:
                raise ModelFormatError(file.path, name, None, f"is in {seen[name].name} too")
            if name == "__metadata__":
                raise ModelFormatError(file.path, name, None, "is no name that safetensors can hold")
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
        if path.is_file() and not path.name.endswith(_LEFT_OUT) and path.stat().st_size <= _MOST_COPIED:
            shutil.copyfile(path, target / path.name)
