"""Atomic writing of low-bit folders.

A folder is written next to its target under a temporary name, flushed to disk, and then renamed. A failure before the
rename (full disk, interrupt, invalid weight) removes the temporary folder and changes nothing else. Temporary folders
of killed processes are removed by the next save in the same place.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.gguf_parts import first_part
from ipex_lookahead.checkpoints.license import copy_license
from ipex_lookahead.checkpoints.low_bit import FLOATS, MARKER, VERSION, StoredStream, checksum, stored_as, streams
from ipex_lookahead.checkpoints.safetensors import SINGLE
from ipex_lookahead.errors import InputError, ModelFormatError, SaveError, arg
from ipex_lookahead.files.paths import DRAFTER_FOLDER, given_path
from ipex_lookahead.files.safe_json import spelled
from ipex_lookahead.files.temporary import put_in_place, temporary_folder
from ipex_lookahead.formats.base import PackedWeight

Progress = Callable[[int, int], None]
"""Callback that receives the bytes written so far and the total number of bytes."""
_DRAFTER_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")


def save(
    folder: str | PathLike[str],
    *,
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    infos: Mapping[str, TensorInfo],
    weights: Iterable[tuple[str, PackedWeight]],
    low_bit: Mapping[str, Any],
    tokenizer: Any | None = None,
    source: Path | None = None,
    drafter: Path | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a model as a folder that :class:`LowBitCheckpoint` reads back bit for bit; return the folder.

    Args:
        folder: target; must not exist, be empty, or (with ``overwrite``) hold only an earlier save.
        config: the model's Hugging Face config.
        generation_config: the checkpoint's; may be empty.
        infos: shape and format of every weight in ``weights``.
        weights: each name of ``infos`` once, in any order; one weight is held at a time.
        low_bit: ``low_bit`` (name), ``group_size``, ``mixed_precision``, optionally ``requantized_from``.
        tokenizer: object with ``save_pretrained(folder)``.
        source: original checkpoint, from which the license is copied; None: unknown.
        drafter: files of the model's drafting head, which are copied; None: no head.
        progress: see :data:`Progress`.
        overwrite: replace an earlier save. It is removed once the new one is in place.

    Raises:
        InputError: if the folder has other content, or the weights do not match ``infos``.
        SaveError: if writing fails, for example because the disk is full; existing files are unchanged.
    """
    check_target(folder, overwrite)
    target = Path(os.path.realpath(given_path(folder)))
    layout = _Layout(infos)
    parents = [p for p in target.parents if not p.exists()]
    try:
        try:
            with temporary_folder(target) as temporary:
                _write_tensors(temporary / SINGLE, layout, weights, progress)
                if generation_config:
                    _write_json(temporary / "generation_config.json", dict(generation_config))
                if tokenizer is not None:
                    tokenizer.save_pretrained(str(temporary))
                if source is not None:
                    copy_license(source, temporary)
                if drafter is not None:
                    _copy_drafter(drafter, temporary)
                files = sorted(_files(temporary))
                marker = {"version": VERSION, **low_bit, "files": [*files, "config.json"]}
                _write_json(temporary / "config.json", {**config, MARKER: marker})
                _flush(temporary)
                put_in_place(temporary, target)
                with contextlib.suppress(OSError):  # the folder is complete; this flushes only its name
                    _sync(target.parent)
        except OSError as error:
            raise _save_error(target, error) from error
    except BaseException:
        for parent in parents:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
    return target


class _Layout:
    """Positions of all arrays in the file, and its header."""

    def __init__(self, infos: Mapping[str, TensorInfo]) -> None:
        if not infos:
            raise InputError("there are no weights to save")
        self.infos = infos
        self.places: dict[str, list[tuple[StoredStream, int]]] = {}
        self._entries: dict[str, Any] = {}
        end = 0
        for name, info in infos.items():
            parts = streams(info)
            if parts is None:
                raise InputError(f"weight {name} has format {info.format!r}, group size {info.group_size}: unknown")
            self.places[name] = []
            for part in parts:
                if name + part.suffix in self._entries or name in ("format", "__metadata__"):
                    raise InputError(f"weight {name} would be stored under a name that is already used")
                begin, end = end, end + part.nbytes
                self._entries[name + part.suffix] = {
                    "dtype": part.stream.stored,
                    "shape": list(part.shape),
                    "data_offsets": [begin, end],
                }
                self.places[name].append((part, begin))
        self.data_bytes = end

    def header(self, checksums: Mapping[str, str]) -> bytes:
        """Return the file's bytes before the data; checksums that are still unknown are filled with zeros."""
        metadata = {"format": "pt"}
        for name, info in self.infos.items():
            described = "" if info.format in FLOATS else f"{stored_as(info)} "
            metadata[name] = f"{described}sha256:{checksums.get(name, '0' * 64)}"
        header = json.dumps({"__metadata__": metadata, **self._entries}, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        return struct.pack("<Q", len(header)) + header


def _write_tensors(
    path: Path, layout: _Layout, weights: Iterable[tuple[str, PackedWeight]], progress: Progress | None
) -> None:
    start = len(layout.header({}))
    missing = dict(layout.places)
    checksums: dict[str, str] = {}
    done = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        # Reserve the disk space first: a full disk must not be noticed after an hour of quantization.
        _reserve(descriptor, start + layout.data_bytes)
        for name, weight in weights:
            if name not in missing:
                raise InputError(f"weight {name} {'was given twice' if name in layout.places else 'is not in infos'}")
            info = layout.infos[name]
            if TensorInfo.of(weight) != info:
                raise InputError(
                    f"weight {name} is {weight.format} {list(weight.shape)} with group size {weight.group_size}, "
                    f"but infos has {info.format} {list(info.shape)} with {info.group_size}"
                )
            written = []
            for part, begin in missing.pop(name):
                array = getattr(weight, part.stream.name)
                if array is None or array.shape != part.shape or array.dtype != part.stream.dtype:
                    raise InputError(f"weight {name}{part.suffix} is not {part.stream.stored} {list(part.shape)}")
                written.append(np.ascontiguousarray(array))
                _write(descriptor, start + begin, written[-1].reshape(-1).view(np.uint8).data)
                done += part.nbytes
            checksums[name] = checksum(name, info, written)
            if progress is not None:
                progress(done, layout.data_bytes)
        if missing:
            raise InputError(f"weight {next(iter(missing))} is in infos but was not given ({len(missing)} in total)")
        _write(descriptor, 0, memoryview(layout.header(checksums)))
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size)


def _write(descriptor: int, offset: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + (1 << 28)], offset + done)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    try:
        as_text = json.dumps(spelled(value), indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path.name} cannot be written as JSON: {error}") from None
    path.write_text(as_text + "\n", encoding="utf-8")


def _flush(folder: Path) -> None:
    """Flush all files to disk, and the folder's own entries last."""
    for path in [*(p for p in folder.rglob("*") if p.is_file()), *(p for p in folder.rglob("*") if p.is_dir()), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_drafter(source: Path, model: Path) -> None:
    """Copy the files of a head, from its folder or GGUF file, into a subfolder of the model. Raises OSError."""
    target = model / DRAFTER_FOLDER
    target.mkdir()
    if source.is_dir():
        files = [*source.glob("*.gguf")] if not (source / "config.json").exists() else []
        files = files or [file for pattern in _DRAFTER_FILES for file in sorted(source.glob(pattern))]
    else:
        files = [file for file in source.parent.glob("*.gguf") if first_part(file) == first_part(source)]
    for file in files:
        shutil.copyfile(file, target / file.name)
    copy_license(source, target)


def check_target(folder: str | PathLike[str], overwrite: bool) -> None:
    """Raise InputError for a target that :func:`save` would refuse, before anything is loaded."""
    target = Path(os.path.realpath(given_path(folder)))
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise InputError(f"{target}: is a file, not a folder", hint="choose another name")
    present = _files(target)
    if not present:
        return
    ours = _files_of_save(target)
    if ours is None:
        raise InputError(
            f"{target}: is not empty and was not written by {arg('save_low_bit')}; nothing was changed",
            hint="choose a new folder",
        )
    if not overwrite:
        raise InputError(
            f"{target}: already holds a saved model",
            hint=f"choose a new folder, or pass {arg('overwrite', True)} to replace it",
        )
    # Earlier versions listed subfolders instead of the files in them.
    if unknown_files := sorted(name for name in present if name not in ours and name.partition("/")[0] not in ours):
        raise InputError(
            f"{target}: holds {unknown_files[0]}, which {arg('save_low_bit')} did not write and will not delete",
            hint="move it away, or choose a new folder",
        )


def _files(folder: Path) -> set[str]:
    """Return the relative names of a folder's files, recursively, and of empty subfolders."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    }


def _files_of_save(folder: Path) -> set[str] | None:
    """Return the files that an earlier save wrote into ``folder``, or None if it was not written by this package."""
    try:
        marker = read_json(folder / "config.json").get(MARKER)
    except ModelFormatError:
        return None
    files = marker.get("files") if isinstance(marker, dict) else None
    return {name for name in files if isinstance(name, str)} if isinstance(files, list) else None


def _save_error(target: Path, error: OSError) -> SaveError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return SaveError(
        f"{target}: could not be saved: {error.strerror or error}; existing files are unchanged",
        hint="free some space, or choose a folder on another disk" if full else "check the folder and its permissions",
    )
