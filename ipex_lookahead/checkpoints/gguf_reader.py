"""The GGUF container: header, metadata and tensor table, validated before memory is allocated.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Reading is linear in the size of
the metadata; every count and length is compared with the remaining bytes of the file before it is used.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.files import BinaryFile
from ipex_lookahead.checkpoints.gguf_types import (
    OTHER_TYPES,
    Q2_0_OF_128,
    READ_TYPES,
    REMOVED_TYPES,
    REPACKED_TYPES,
    TensorType,
    names_of_read_types,
)
from ipex_lookahead.errors import ModelFormatError

MAGIC = b"GGUF"
MAX_RECORDS = 65_536
"""Maximum number of metadata entries and of tensors; real files have less than a hundred and ten thousand."""
MAX_ALIGNMENT = 1 << 16
MAX_KEY = 65_535
MAX_NAME = 1024
MAX_STRING = 16 << 20
MAX_VALUE_BYTES = 128 << 20
"""Maximum size of all metadata values, because decoded values take several times as much memory. A sparse file of a few
bytes on disk can claim any size."""
SMALL_ARRAY = 4096
READ_ARRAYS = ("tokenizer.", "llama.")
"""Prefixes of keys with large numeric arrays that are used; other large arrays are skipped."""
MAX_ARRAY_STRINGS = 2 << 20
"""Maximum number of strings in all arrays, because a short Python string takes several times its bytes in the file."""
MAX_DIM = 1 << 40
_VALUES_AT_ONCE = 1 << 20

_SMALLEST_ENTRY = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
BOOL, STRING, ARRAY, UINT32 = 7, 8, 9, 4
_SCALARS = {
    0: (struct.Struct("<B"), np.uint8),
    1: (struct.Struct("<b"), np.int8),
    2: (struct.Struct("<H"), np.uint16),
    3: (struct.Struct("<h"), np.int16),
    4: (_U32, np.uint32),
    5: (struct.Struct("<i"), np.int32),
    6: (struct.Struct("<f"), np.float32),
    7: (struct.Struct("<B"), np.uint8),
    10: (_U64, np.uint64),
    11: (struct.Struct("<q"), np.int64),
    12: (struct.Struct("<d"), np.float64),
}


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """An entry of the tensor table.

    Attributes:
        name: name in the file.
        shape: slowest dimension first as in numpy (the file has the fastest first).
        type: how the values are stored.
        offset: position of the data in the file.
        nbytes: size of the data.
        entry: position of the entry, for error messages.
        file: the file of the offsets.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int
    entry: int
    file: BinaryFile

    def error(self, offset: int | None, problem: str, *, hint: str = "") -> ModelFormatError:
        """Return an error about this tensor."""
        return ModelFormatError(self.file.path, self.name, offset, problem, hint=hint)

    def pieces(self, first: int, rows: int) -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
        """Yield rows from ``first`` in chunks: (row, position in the file, blocks [rows, bytes])."""
        row_bytes = self.shape[-1] // self.type.block * self.type.nbytes
        step = max(1, _VALUES_AT_ONCE // self.shape[-1])
        for start in range(0, rows, step):
            at = self.offset + (first + start) * row_bytes
            blocks = np.empty((min(rows - start, step), row_bytes), np.uint8)
            self.file.read_into(at, blocks, self.name)
            yield start, at, blocks


Entry = tuple[str, tuple[int, ...], TensorType, int, int, int]
"""Table entry: name, shape, type, offset relative to the first tensor, and positions of the entry and of its offset."""


class GgufFile:
    """A GGUF file with a validated structure.

    Attributes:
        metadata: key to int, float, bool, str, list of str, or a one-dimensional numpy array (bool for uint8 0/1).
            Arrays of more than ``SMALL_ARRAY`` numbers under unused keys are empty, with the right dtype.
        offsets: key to the position of its value.
        tensors: name to entry, in the file's order. Empty until :meth:`read_tensor_table`.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Read header and metadata. Raises ModelFormatError."""
        self.file = BinaryFile(path)
        self.path = self.file.path
        self.metadata: dict[str, Any] = {}
        self.offsets: dict[str, int] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._kinds: dict[str, int] = {}
        self._cursor = _Cursor(self.file)
        try:
            self._read_header()
            for index in range(self._entry_count):
                self._read_entry(f"metadata entry {index}")
            self._alignment = self._read_alignment()
        except BaseException:
            self.file.close()
            raise

    def error(self, field: str, offset: int | None, problem: str, *, hint: str = "") -> ModelFormatError:
        """Return an error about a field of this file."""
        return ModelFormatError(self.path, field, offset, problem, hint=hint)

    def scalar(self, key: str, default: Any = None) -> Any:
        """Return a single value of the metadata, or ``default``; raise ModelFormatError if it is an array."""
        value = self.metadata.get(key, default)
        if isinstance(value, list | np.ndarray):
            raise self.error(key, self.offsets[key], "is an array; it must be a single value")
        return value

    def _read_header(self) -> None:
        cursor = self._cursor
        magic = cursor.take(4, "magic")
        if magic != MAGIC:
            raise self.error(
                "magic",
                0,
                f"is {magic!r}; a GGUF file starts with {MAGIC!r}",
                hint="this is not a complete model; give a .gguf file or a folder with config.json",
            )
        version = cursor.number(_U32, "version")
        if version and version & 0xFFFF == 0:
            raise self.error("version", 4, "is byte-swapped: this is a big-endian file; convert it to little-endian")
        if version not in (2, 3):
            raise self.error("version", 4, f"is {version}; supported versions are 2 and 3")
        self._tensor_count = self._read_count("tensor_count", _SMALLEST_TENSOR)
        self._entry_count = self._read_count("metadata_kv_count", _SMALLEST_ENTRY)

    def _read_count(self, field: str, smallest: int) -> int:
        at = self._cursor.at
        count = int(self._cursor.number(_U64, field))
        if count > MAX_RECORDS:
            raise self.error(field, at, f"is {count}; the maximum is {MAX_RECORDS}")
        if count * smallest > self._cursor.left:
            raise self.error(field, at, f"is {count}, more than the remaining {self._cursor.left} bytes hold")
        return count

    def _read_entry(self, field: str) -> None:
        cursor = self._cursor
        at = cursor.at
        key = cursor.name(f"key of {field}", MAX_KEY)
        if key in self.metadata:
            raise self.error(key, at, "appears twice in the metadata")
        at = cursor.at
        kind = int(cursor.number(_U32, f"type of {key}"))
        self.offsets[key] = cursor.at
        if kind == STRING:
            self.metadata[key] = cursor.string(key, MAX_STRING)
        elif kind == ARRAY:
            self.metadata[key] = self._read_array(key)
        elif kind in _SCALARS:
            value = cursor.number(_SCALARS[kind][0], key)
            if kind == BOOL and value not in (0, 1):
                raise self.error(key, self.offsets[key], f"is {value}; a bool is 0 or 1")
            self.metadata[key] = bool(value) if kind == BOOL else value
        else:
            raise self.error(f"type of {key}", at, f"is {kind}; types are 0 to 12")
        self._kinds[key] = kind

    def _read_array(self, key: str) -> Any:
        cursor = self._cursor
        at = cursor.at
        kind = int(cursor.number(_U32, f"element type of {key}"))
        if kind == ARRAY:
            raise self.error(f"element type of {key}", at, "is array; arrays of arrays are not allowed")
        if kind != STRING and kind not in _SCALARS:
            raise self.error(f"element type of {key}", at, f"is {kind}; types are 0 to 12")
        at = cursor.at
        count = int(cursor.number(_U64, f"length of {key}"))
        size = 8 if kind == STRING else _SCALARS[kind][0].size
        if count * size > cursor.left:
            raise self.error(f"length of {key}", at, f"is {count}, more than the remaining {cursor.left} bytes hold")
        if kind == STRING:
            return cursor.strings(count, key)
        at = cursor.at
        if count > SMALL_ARRAY and not key.startswith(READ_ARRAYS):
            cursor.skip(count * size)
            return np.empty(0, bool if kind == BOOL else _SCALARS[kind][1])
        values = cursor.numbers(count, _SCALARS[kind][1], key)
        if kind == BOOL:
            if count and int(values.max()) > 1:
                raise self.error(key, at + int(np.argmax(values > 1)), "holds a bool that is neither 0 nor 1")
            return values.view(bool)
        return values

    def _read_alignment(self) -> int:
        key = "general.alignment"
        if key not in self.metadata:
            return 32
        value = self.metadata[key]
        if self._kinds[key] != UINT32:
            raise self.error(key, self.offsets[key], "is not of type uint32")
        if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            raise self.error(key, self.offsets[key], f"is {value}; it must be a power of two up to {MAX_ALIGNMENT}")
        return int(value)

    def read_tensor_table(self) -> None:
        """Read and check the tensor table, including unsupported types. Raises ModelFormatError."""
        cursor = self._cursor
        entries = [self._read_tensor(f"tensor {index}") for index in range(self._tensor_count)]
        start = _padded(cursor.at, self._alignment)
        expected = 0
        wide = self._has_wide_q2_0(entries, start)
        for name, shape, kind, offset, entry, offset_at in entries:
            if wide and kind is REPACKED_TYPES[42]:
                kind = Q2_0_OF_128
                if shape[-1] % kind.block:
                    raise self.error(name, entry, f"has rows of {shape[-1]}; expected a multiple of {kind.block}")
            nbytes = math.prod(shape) // kind.block * kind.nbytes
            if offset != expected:
                raise self.error(
                    f"offset of {name}",
                    offset_at,
                    f"is {offset}; it must be {expected}, directly after the previous tensor",
                )
            if start + offset + nbytes > self.file.size:
                raise self.error(
                    name,
                    offset_at,
                    f"ends at byte {start + offset + nbytes}, but the file ends at byte {self.file.size}",
                    hint="the file is incomplete: download or convert it again",
                )
            self.tensors[name] = GgufTensor(name, shape, kind, start + offset, nbytes, entry, self.file)
            expected = _padded(offset + nbytes, self._alignment)
        if self.file.size > start + expected:
            _log.warning("%s: %d bytes follow the last tensor", self.path, self.file.size - start - expected)

    def _has_wide_q2_0(self, entries: list[Entry], start: int) -> bool:
        """Return True if a Q2_0 tensor is too small for blocks of 64 inputs, so that its blocks have 128 inputs."""
        ends = [*(offset for _, _, _, offset, *_ in entries[1:]), self.file.size - start]
        return any(
            kind is REPACKED_TYPES[42] and math.prod(shape) // kind.block * kind.nbytes > end - offset
            for (_, shape, kind, offset, *_), end in zip(entries, ends, strict=False)
        )

    def _read_tensor(self, field: str) -> Entry:
        cursor = self._cursor
        entry = cursor.at
        name = cursor.name(f"name of {field}", MAX_NAME)
        if name in self.tensors:
            raise self.error(name, entry, "appears twice in the tensor table")
        at = cursor.at
        dims = int(cursor.number(_U32, f"n_dims of {name}"))
        if not 1 <= dims <= 4:
            raise self.error(f"n_dims of {name}", at, f"is {dims}; it must be 1 to 4")
        shape_at = cursor.at
        shape = tuple(int(cursor.number(_U64, f"dimension {i} of {name}")) for i in range(dims))
        for index, size in enumerate(shape):
            if not 1 <= size <= MAX_DIM:
                raise self.error(
                    f"dimension {index} of {name}", shape_at + 8 * index, f"is {size}; it must be 1 to 2^40"
                )
        at = cursor.at
        kind = self._tensor_type(name, int(cursor.number(_U32, f"type of {name}")), at)
        if shape[0] % kind.block:
            raise self.error(
                f"dimension 0 of {name}", shape_at, f"is {shape[0]}; {kind.name} needs a multiple of {kind.block}"
            )
        at = cursor.at
        offset = int(cursor.number(_U64, f"offset of {name}"))
        # Registered now to detect duplicate names; completed when all offsets are known.
        self.tensors[name] = GgufTensor(name, shape[::-1], kind, 0, 0, entry, self.file)
        return name, shape[::-1], kind, offset, entry, at

    def _tensor_type(self, name: str, number: int, at: int) -> TensorType:
        for known in (READ_TYPES, OTHER_TYPES):
            if number in known:
                return known[number]
        supported = names_of_read_types()
        if number in REMOVED_TYPES:
            raise self.error(
                f"type of {name}", at, f"is {REMOVED_TYPES[number]}, which GGUF removed; supported are {supported}"
            )
        raise self.error(f"type of {name}", at, f"is {number}, which is unknown; supported types are {supported}")

    def close(self) -> None:
        self.file.close()


class _Cursor:
    """Sequential reader with a window on the file; checks every length against the remaining bytes."""

    _WINDOW = 1 << 20

    def __init__(self, file: BinaryFile) -> None:
        self._file = file
        self._base = 0
        self._window = b""
        self._position = 0
        self._strings_left = MAX_ARRAY_STRINGS
        self._values_left = MAX_VALUE_BYTES

    @property
    def at(self) -> int:
        """Position of the next byte."""
        return self._base + self._position

    @property
    def left(self) -> int:
        """Number of bytes to the end of the file."""
        return self._file.size - self.at

    def _need(self, count: int, field: str) -> None:
        if len(self._window) - self._position < count:
            if count > self.left:
                raise ModelFormatError(
                    self._file.path, field, self.at, f"needs {count} bytes, but only {self.left} remain in the file"
                )
            at = self.at
            self._window = self._file.read(at, min(self.left, max(count, self._WINDOW)), field)
            self._base, self._position = at, 0

    def take(self, count: int, field: str) -> bytes:
        self._need(count, field)
        start = self._position
        self._position += count
        return self._window[start : self._position]

    def skip(self, count: int) -> None:
        """Skip bytes that are known to exist."""
        self._base, self._position, self._window = self.at + count, 0, b""

    def reserve(self, count: int, field: str) -> None:
        """Count the bytes of a value, before memory is allocated for it."""
        self._values_left -= count
        if self._values_left < 0:
            raise ModelFormatError(
                self._file.path, f"length of {field}", self.at, f"exceeds {MAX_VALUE_BYTES} bytes of metadata in total"
            )

    def numbers(self, count: int, kind: Any, field: str) -> npt.NDArray[Any]:
        """Read an array of numbers."""
        size = count * np.dtype(kind).itemsize
        self.reserve(size, field)
        if size <= self._WINDOW:
            return np.frombuffer(self.take(size, field), kind)
        values: npt.NDArray[Any] = np.empty(count, kind)
        self._file.read_into(self.at, values, field)
        self.skip(size)
        return values

    def number(self, kind: struct.Struct, field: str) -> Any:
        self._need(kind.size, field)
        (value,) = kind.unpack_from(self._window, self._position)
        self._position += kind.size
        return value

    def string(self, field: str, limit: int) -> str:
        at = self.at
        length = int(self.number(_U64, f"length of {field}"))
        if length > limit:
            raise ModelFormatError(
                self._file.path, f"length of {field}", at, f"is {length}; the maximum is {limit} bytes"
            )
        at = self.at
        self.reserve(length, field)
        raw = self.take(length, field)
        return self._decode(raw, at, field)

    def name(self, field: str, limit: int) -> str:
        """Read a key or a tensor name: not empty, without NUL."""
        at = self.at
        value = self.string(field, limit)
        if not value:
            raise ModelFormatError(self._file.path, field, at, "is empty")
        if "\0" in value:
            raise ModelFormatError(self._file.path, field, at, "holds a NUL character")
        return value

    def strings(self, count: int, field: str) -> list[str]:
        """Read an array of strings; local names keep the loop over 100,000 tokens and merges fast."""
        if count > self._strings_left:
            raise ModelFormatError(
                self._file.path, f"length of {field}", self.at - 8, f"exceeds {MAX_ARRAY_STRINGS} strings in arrays"
            )
        self._strings_left -= count
        found: list[str] = []
        unpack = _U64.unpack_from
        while len(found) < count:
            window, position, end = self._window, self._position, len(self._window)
            try:
                for _ in range(count - len(found)):
                    start = position + 8
                    stop = start + unpack(window, position)[0]
                    if stop > end:
                        break
                    found.append(window[start:stop].decode())
                    position = stop
            except (UnicodeDecodeError, struct.error):
                pass  # the slow path below reports the position, or continues with the next window
            self.reserve(position - self._position, field)
            self._position = position
            if len(found) < count:
                found.append(self.string(f"{field}[{len(found)}]", MAX_STRING))
        return found

    def _decode(self, raw: bytes, at: int, field: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ModelFormatError(self._file.path, field, at + error.start, "is not valid UTF-8") from None


def _padded(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) // alignment * alignment
