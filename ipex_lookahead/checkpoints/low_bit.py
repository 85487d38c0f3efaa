"""Folders written by ``save_low_bit``: Hugging Face's layout with packed weights in one safetensors file.

``config.json`` has the key ``ipex_lookahead``: version, low-bit format, list of files. A float tensor is stored under
its name, a low-bit one as ``NAME.codes`` and its format's further streams (``NAME.scales``, ``NAME.minimums``). The
file's ``__metadata__`` maps NAME to format, group size and logical shape, as in ``"sym_int4 32 576x1536"``. The suffix
``" ordered"`` announces ``NAME.order``, int32 (``PackedWeight.order``). From version 2 on each entry, including float
tensors, ends with a checksum: ``"sha256:..."``, see :func:`checksum`.

The file is not memory-mapped: kernels hold weights in an order of their own, so a mapping would be an additional copy
that another program could truncate or modify while a model is running.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec, spec_for
from ipex_lookahead.architectures.hparams import Source, boolean, integer, shown, text
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import Folder, TensorInfo
from ipex_lookahead.checkpoints.config_json import checked_config, read_json
from ipex_lookahead.checkpoints.float_tensors import check_kind, read_float, read_placed
from ipex_lookahead.checkpoints.generation_config import read_generation_config
from ipex_lookahead.checkpoints.placed import (
    Run,
    constant,
    fused_experts,
    head_tensors,
    run_of,
    stored_rows,
    tensors_by_name,
    transpose,
    transposed_format,
    with_mtp,
    with_offset,
)
from ipex_lookahead.checkpoints.safetensors import SINGLE
from ipex_lookahead.checkpoints.safetensors_reader import DTYPE_BITS, MAX_DIM, SafetensorsFile, StoredTensor
from ipex_lookahead.checkpoints.tensor_names import renamed
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats import FLOATS as FLOAT_FORMATS
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import ORDER, PackedWeight, Stream

MARKER = "ipex_lookahead"
VERSION = 2
OLD_VERSION = 1
"""Version without checksums; it can still be read."""
FLOATS = {name: FORMATS[name].streams[0].stored for name in FLOAT_FORMATS}
"""Float formats -> safetensors dtype."""

_STORED_AS = re.compile(r"([a-z0-9_]{1,32}) ([0-9]{1,4}) ([0-9]{1,13})x([0-9]{1,13})( ordered)?", re.ASCII)
_CHECKSUM = re.compile(r"(?:(.*) )?sha256:([0-9a-f]{64})", re.ASCII | re.DOTALL)
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StoredStream:
    """One stored array of a weight: ``suffix`` of its name, its stream and its shape."""

    suffix: str
    stream: Stream
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return prod(self.shape) * self.stream.itemsize


def streams(info: TensorInfo) -> list[StoredStream] | None:
    """Return the arrays that a weight is stored as, in the order of its format's streams; None for invalid weights."""
    if info.format in FLOATS:
        return [StoredStream("", FORMATS[info.format].streams[0], info.shape)]
    target = FORMATS.get(info.format)
    if target is None or info.group_size not in target.group_sizes or len(info.shape) != 2:
        return None
    found = [StoredStream(f".{s.name}", s, s.shape(info.shape, info.group_size)) for s in target.streams]
    return [*found, StoredStream(".order", ORDER, info.shape[1:])] if info.ordered else found


def packed_bytes(info: TensorInfo) -> int:
    """Return the bytes of a packed tensor, as ``PackedWeight.nbytes``, for any format or safetensors dtype."""
    dtype = FLOATS.get(info.format, info.format.upper())
    if dtype in DTYPE_BITS:
        return -(-prod(info.shape) * DTYPE_BITS[dtype] // 8)
    return sum(part.nbytes for part in streams(info) or ())


def stored_as(info: TensorInfo) -> str:
    """Return the description of a low-bit weight in ``__metadata__``, without the checksum."""
    return f"{info.format} {info.group_size} {'x'.join(map(str, info.shape))}{' ordered' * info.ordered}"


def checksum(name: str, info: TensorInfo, data: Iterable[npt.NDArray[np.generic]]) -> str:
    """Return the SHA-256, in hexadecimal, of a weight's stored name, its description, and the bytes of its arrays."""
    total = hashlib.sha256(f"{name}\0{stored_as(info)}\0".encode())
    for part in data:
        total.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)  # hashlib releases the GIL
    return total.hexdigest()


@dataclass(frozen=True, slots=True)
class _Weight:
    """A stored weight: name, description, arrays, and checksum ("" if there is none)."""

    name: str
    info: TensorInfo
    parts: list[StoredTensor]
    checksum: str


class LowBitCheckpoint(Folder):
    """A folder written by ``save_low_bit``.

    Attributes:
        low_bit: ``low_bit`` (format's name), ``group_size``, ``mixed_precision``, and ``requantized_from`` if the
            weights were in another low-bit format before.
        experts_in_one: True if a mixture's experts share tensors, as transformers has them and the torch engine saves.
    """

    spec: ModelSpec

    def __init__(self, path: str | PathLike[str], *, other_family: bool = False) -> None:
        """Open and validate the folder without reading tensors. Raises ModelFormatError or UnsupportedModelError.

        With ``other_family``, for families that only transformers supports, ``config`` and ``generation_config`` stay
        empty, because they cannot be checked here, and float tensors may have up to four dimensions.
        """
        self.path = Path(path)
        config_path = self.path / "config.json"
        raw = read_json(config_path)
        self.low_bit, version = _read_marker(raw, config_path)
        self._has_checksums = version > OLD_VERSION
        self._intact: set[str] = set()
        self.config: dict[str, Any] = {}
        self.generation_config: dict[str, Any] = {}
        self._most_dimensions = 4 if other_family else 2
        self._weights: dict[str, Tensor] = {}
        if not other_family:
            self.config = self._checked_config(raw, config_path)
            file = self.path / "generation_config.json"
            self.generation_config = read_generation_config(file, self.config["vocab_size"])
        self._file = SafetensorsFile(self.path / SINGLE)
        if not other_family:
            held = self._file.tensors
            self.spec = self._spec_of(held)
            every = {**tensors_by_name(self.spec), **head_tensors(self.spec)}
            self._weights = {name: fused_experts(tensor, held) for name, tensor in every.items()}
            self._most_dimensions = max(len(tensor.hf.shape) for tensor in self._weights.values())
        try:
            self._tensors = self._find_tensors()
            places = (tensor.hf for tensor in self._weights.values())
            self.experts_in_one = any(place.expert is not None and place.name in self._tensors for place in places)
        except BaseException:
            self._file.close()
            raise

    def _checked_config(self, raw: JsonObject, path: Path) -> dict[str, Any]:
        return checked_config(raw, path)

    def _spec_of(self, held: Mapping[str, StoredTensor]) -> ModelSpec:
        """Return the spec of the model that the config and the stored tensors describe."""
        return with_mtp(
            spec_for(self.config, file=self.path),
            lambda tensor: tensor.name in held or f"{tensor.name}.codes" in held,
        )

    def _find_tensors(self) -> dict[str, _Weight]:
        stored = dict(self._file.tensors)
        found: dict[str, _Weight] = {}
        checksums: dict[str, str] = {}
        for name, line in self._file.metadata.items():
            if name == "format" or (ours := self._renamed(name)) is None:
                continue
            described = self._described(name, line, checksums)
            if described is None:  # a float tensor
                if name not in stored:
                    raise self._error(name, self._file.metadata.at[name], "is missing from the file")
                continue
            match = _STORED_AS.fullmatch(described)
            shape = (int(match[3]), int(match[4])) if match else (0, 0)
            ordered = match is not None and match[5] is not None
            info = TensorInfo(shape, match[1] if match else "", int(match[2]) if match else 0, ordered=ordered)
            parts = streams(info) if all(0 < size <= MAX_DIM for size in shape) and info.format not in FLOATS else None
            if parts is None:
                raise self._error(
                    name, self._file.metadata.at[name],
                    f"is stored as {shown(line)}; it must be FORMAT GROUP_SIZE ROWSxCOLUMNS, "
                    f"a format of {', '.join(name for name in FORMATS if name not in FLOATS)}, a group size that it has"
                )  # fmt: skip
            if ours in found:
                raise self._error(name, self._file.metadata.at[name], f"is also stored under another name of {ours}")
            arrays = [self._take(stored, name, part) for part in parts]
            found[ours] = _Weight(name, info, arrays, checksums.get(name, ""))
        for name, tensor in stored.items():
            if (ours := self._renamed(name)) is None:
                continue
            number = ours in self._weights and not self._weights[ours].shape
            check_kind(self._file, name, tensor, most_dimensions=self._most_dimensions, number=number)
            if ours in found:
                raise self._error(name, tensor.entry, "is stored both as a float and as a low-bit tensor, or twice")
            if self._has_checksums and name not in checksums:
                raise self._error(name, tensor.entry, "has no checksum (sha256:...) in __metadata__")
            info = TensorInfo(tensor.shape, _FLOAT_FORMATS[tensor.dtype])
            found[ours] = _Weight(name, info, [tensor], checksums.get(name, ""))
        if not found:
            raise self._error("tensors", None, "the checkpoint has no tensors")
        return found

    def _described(self, name: str, line: str, checksums: dict[str, str]) -> str | None:
        """Parse an entry of ``__metadata__``: record the checksum, return the description (None for float tensors)."""
        if not self._has_checksums:
            return line
        match = _CHECKSUM.fullmatch(line)
        if match is None:
            raise self._error(
                name, self._file.metadata.at[name],
                f"is stored as {shown(line)}; it must end with sha256: and 64 hexadecimal digits",
            )  # fmt: skip
        checksums[name] = match[2]
        return match[1]

    def _renamed(self, name: str) -> str | None:
        """Return the spec's name of a stored tensor; None for other parts of a larger model."""
        return renamed(name) if self._weights else name

    def _take(self, stored: dict[str, StoredTensor], weight: str, part: StoredStream) -> StoredTensor:
        name = weight + part.suffix
        if name not in stored:
            raise self._error(name, self._file.metadata.at[weight], "is missing from the file")
        tensor = stored.pop(name)
        if (tensor.dtype, tensor.shape) != (part.stream.stored, part.shape):
            raise self._error(
                name,
                tensor.entry,
                f"is {tensor.dtype} {list(tensor.shape)}; it must be {part.stream.stored} {list(part.shape)}",
            )
        return tensor

    def names(self) -> Sequence[str]:
        """Return the tensors that are present, in the order of a step, then those that the model does not have."""
        of_head = head_tensors(self.spec) if self._weights else {}
        used = {self._place_of(name) for name in self._weights}
        there = (name for name in self._weights if self._place_of(name) is not None or self._is_implied(name))
        known = [name for name in there if name not in of_head]
        return [*known, *(name for name in self._tensors if name not in used)]

    def info(self, name: str) -> TensorInfo:
        if self._is_implied(name):
            return TensorInfo(self._weights[name].shape, "fp32")
        stored = self._find(name).info
        if name in self._tensors:
            return stored
        tensor = self._weights[name]
        if stored.shape != tensor.hf.shape:
            raise self._error(
                tensor.hf.name, None,
                f"has shape {list(stored.shape)}, but the config implies {list(tensor.hf.shape)}",
            )  # fmt: skip
        if tensor.hf.layout == "by_input":
            return TensorInfo(tensor.shape, transposed_format(stored.format))
        return TensorInfo(tensor.shape, stored.format, stored.group_size, ordered=stored.ordered)

    def read(self, name: str) -> PackedWeight:
        """Read the weight exactly as it was saved; takes no memory in addition to the result.

        Raises:
            ModelFormatError: if a value is NaN or infinite, or the file was truncated or changed meanwhile.
        """
        tensor = self._weights.get(name)
        if tensor is not None and self._is_implied(name):
            return constant(tensor)
        if tensor is not None and name not in self._tensors and tensor.hf.layout == "by_input":
            self.info(name)
            return transpose(self._read(name, stored_rows(tensor, tensor.hf)))
        return self._read(name, tensor)

    def _read(self, name: str, tensor: Tensor | None) -> PackedWeight:
        stored = self._find(name)
        info, whole = stored.info, name in self._tensors
        if not whole and stored.name not in self._intact:  # checksums cover whole tensors only
            self._check(stored, (piece for part in stored.parts for piece in self._pieces(part)))
        if info.format in FLOATS:
            if tensor is not None and not whole:
                return read_placed(self._file, tensor, stored.parts[0])
            read = read_float(self._file, name, stored.parts[0])
            self._check(stored, [read.codes])
            return read if tensor is None else with_offset(read, tensor.hf.offset)
        target = FORMATS[info.format]
        arrays: dict[str, npt.NDArray[Any]] = {}
        for stream, part in zip(target.streams, stored.parts, strict=False):
            run = None if whole or tensor is None else run_of(tensor, tensor.hf)
            array = self._array(part, stream, run)
            if (bad := target.bad_scale(stream.name, array)) is not None:
                at = part.offset + bad.index * stream.itemsize
                raise self._error(name, at, f"{bad.what} {bad.index // stream.elements} {bad.problem}")
            arrays[stream.name] = array
        order = self._order(stored.parts[-1]) if info.ordered else None
        if whole:
            self._check(stored, [*arrays.values(), *([] if order is None else [order])])
        shape = self.info(name).shape if whole or tensor is None else tensor.shape
        return PackedWeight(info.format, shape, group_size=info.group_size, order=order, **arrays)

    def _order(self, stored: StoredTensor) -> npt.NDArray[np.int32]:
        """Read an order of inputs; raise ModelFormatError if it is not a permutation."""
        order: npt.NDArray[np.int32] = self._array(stored, ORDER, None)
        if not np.array_equal(np.sort(order), np.arange(order.size)):
            raise self._error(stored.name, stored.offset, "is not a permutation of the inputs")
        return order

    def _check(self, stored: _Weight, data: Iterable[npt.NDArray[np.generic]]) -> None:
        """Raise ModelFormatError unless ``data``, all arrays of a weight or their pieces, matches the checksum."""
        if stored.checksum and checksum(stored.name, stored.info, data) != stored.checksum:
            raise ModelFormatError(
                self._file.path, stored.name, stored.parts[0].offset,
                "its checksum differs from the one that was saved",
                hint="the file is damaged: copy the folder again, or save the model again",
            )  # fmt: skip
        self._intact.add(stored.name)

    def _pieces(self, part: StoredTensor) -> Iterator[npt.NDArray[np.uint8]]:
        for at in range(0, part.nbytes, _CHUNK_BYTES):
            piece = np.empty(min(_CHUNK_BYTES, part.nbytes - at), np.uint8)
            self._file.file.read_into(part.offset + at, piece, part.name)
            yield piece

    def _array(self, stored: StoredTensor, stream: Stream, run: Run | None) -> npt.NDArray[Any]:
        """Read a stream, or the rows of it that are a weight."""
        if run is None:
            array: npt.NDArray[Any] = np.empty(stored.shape, stream.dtype)
            self._file.file.read_into(stored.offset, array, stored.name)
            return array
        array = np.empty((run.span, *stored.shape[1:]), stream.dtype)
        at = stored.offset + run.first * (array.nbytes // run.span)
        self._file.file.read_into(at, array, stored.name)
        return np.ascontiguousarray(array[run.rows])

    def _place_of(self, name: str) -> str | None:
        """Return the stored name that holds a weight: its own, or the tensor it is a part of.

        The torch engine saves tensors as transformers has them, which may combine several weights.
        """
        if name in self._tensors:
            return name
        part = self._weights[name].hf.name if name in self._weights else name
        return part if part in self._tensors else None

    def _is_implied(self, name: str) -> bool:
        """Return True for a constant that the torch engine, which saves transformers' tensors, did not save."""
        return name not in self._tensors and name in self._weights and self._weights[name].constant is not None

    def _find(self, name: str) -> _Weight:
        place = self._place_of(name)
        if place is None:
            raise self._error(name, None, "no tensor has this name")
        return self._tensors[place]

    def _error(self, field: str, offset: int | None, problem: str) -> ModelFormatError:
        return ModelFormatError(self._file.path, field, offset, problem)

    def close(self) -> None:
        self._file.close()


_FLOAT_FORMATS = {dtype: name for name, dtype in FLOATS.items()}


def _read_marker(raw: JsonObject, path: Path) -> tuple[dict[str, Any], int]:
    """Return the folder's low-bit settings and version."""
    source = Source.of(raw, path)
    marker = raw.get(MARKER)
    if not isinstance(marker, JsonObject):
        raise source.error(MARKER, f"is {shown(marker)}; it must be an object, as written by save_low_bit")
    source = Source.of(marker, path, MARKER)
    version = integer(1, 2**31 - 1)(source, "version", marker.get("version"))
    if version > VERSION:
        raise UnsupportedModelError(
            f"{path}: was written in version {version} of the format; this release supports versions up to {VERSION}",
            hint="upgrade ipex-lookahead, or save the model again with this release",
        )
    rounded_from = marker.get("requantized_from")
    said = {
        **({} if rounded_from is None else {"requantized_from": text(source, "requantized_from", rounded_from)}),
        "low_bit": text(source, "low_bit", marker.get("low_bit")),
        "group_size": integer(0, 4096)(source, "group_size", marker.get("group_size")),
        "mixed_precision": boolean(source, "mixed_precision", marker.get("mixed_precision")),
    }
    return said, version
