"""The safetensors container: a file's header, validated so that every byte belongs to exactly one tensor.

Format: https://github.com/huggingface/safetensors#format. Unlike the reference reader, this one refuses duplicate keys,
because readers disagree about their meaning.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ipex_lookahead.architectures.hparams import shown
from ipex_lookahead.checkpoints.files import BinaryFile
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.safe_json import JsonObject, parse

MAX_HEADER = 100_000_000
MAX_TENSORS = 65_536
MAX_NAME = 1024
MAX_VALUES = 9 * MAX_TENSORS
"""Maximum number of JSON values in the header: a matrix takes eight."""
MAX_DIMS = 8
MAX_DIM = 1 << 40

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Dtype -> bits per value, for every dtype of the format."""
FLOATS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
"""Dtype -> format with the same bits."""

_KEYS = ("dtype", "shape", "data_offsets")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file; ``offset`` is its position in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    header: JsonObject
    name: str

    @property
    def entry(self) -> int:
        """Position of the tensor's entry in the header, for error messages."""
        return self.header.at[self.name]


class SafetensorsFile:
    """A safetensors file with a validated header.

    Attributes:
        tensors: name to entry, in the order of their data.
        metadata: the header's ``__metadata__``.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open and validate the file. Raises ModelFormatError."""
        self.file = BinaryFile(path)
        self.path = self.file.path
        try:
            header, data_start = self._read_header()
            self.metadata = self._read_metadata(header)
            self.tensors = self._read_tensors(header, data_start)
        except BaseException:
            self.file.close()
            raise

    def _read_header(self) -> tuple[JsonObject, int]:
        (length,) = struct.unpack("<Q", self.file.read(0, 8, "header length"))
        if not 2 <= length <= min(MAX_HEADER, self.file.size - 8):
            raise self._error(
                "header length", 0, f"is {length}; it must be 2 to {min(MAX_HEADER, max(2, self.file.size - 8))}"
            )
        data = self.file.read(8, length, "header")
        if data[:1] != b"{":
            raise self._error("header", 8, f"starts with {data[:1]!r}; it must start with '{{'")
        header = parse(data, self.path, "header", start=8, max_depth=4, max_values=MAX_VALUES)
        assert isinstance(header, JsonObject)  # it starts with a brace
        return header, 8 + length

    def _read_metadata(self, header: JsonObject) -> JsonObject:
        metadata = header.get("__metadata__", JsonObject())
        if not isinstance(metadata, JsonObject):
            raise self._error("__metadata__", header.at["__metadata__"], "is not an object")
        for key, value in metadata.items():
            if not isinstance(value, str):
                raise self._error(f"__metadata__.{key[:60]}", metadata.at[key], "is not a string")
        return metadata

    def _read_tensors(self, header: JsonObject, start: int) -> dict[str, StoredTensor]:
        names = [name for name in header if name != "__metadata__"]
        if len(names) > MAX_TENSORS:
            raise self._error("header", 8, f"lists {len(names)} tensors; the maximum is {MAX_TENSORS}")
        found = {name: self._read_tensor(name, header, start) for name in names}
        ordered = sorted(found, key=lambda name: found[name].offset)
        expected = start
        for name in ordered:
            tensor = found[name]
            if tensor.offset != expected:
                what = "there is a gap before it" if tensor.offset > expected else "it overlaps the previous tensor"
                raise self._error(
                    name,
                    tensor.entry,
                    f"data_offsets start at {tensor.offset - start}, not at {expected - start}: {what}",
                )
            expected += tensor.nbytes
        if expected != self.file.size:
            raise self._error(
                "data",
                expected,
                f"the tensors end at byte {expected}, the file at byte {self.file.size}",
                hint="the file is incomplete or was appended to: download it again",
            )
        return {name: found[name] for name in ordered}

    def _read_tensor(self, name: str, header: JsonObject, start: int) -> StoredTensor:
        entry = header[name]
        if not 0 < len(name) <= MAX_NAME or "\0" in name:
            raise self._error(
                shown(name), header.at[name], f"a tensor's name must have 1 to {MAX_NAME} characters and no NUL"
            )
        if not isinstance(entry, JsonObject) or sorted(entry) != sorted(_KEYS):
            raise self._error(
                name, header.at[name], f"must be an object with the keys {', '.join(_KEYS)} and no others"
            )
        dtype, shape, offsets = (entry[key] for key in _KEYS)
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            raise self._error(f"{name}.dtype", entry.at["dtype"], f"is {shown(dtype)}, which is not a dtype")
        if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(_is_size(n, MAX_DIM) for n in shape):
            raise self._error(
                f"{name}.shape",
                entry.at["shape"],
                f"is {shown(shape)}; it must be a list of up to {MAX_DIMS} whole numbers from 0 to 2^40",
            )
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(n, 1 << 63) for n in offsets):
            raise self._error(
                f"{name}.data_offsets",
                entry.at["data_offsets"],
                f"is {shown(offsets)}; it must be two whole numbers from 0 to 2^63",
            )
        begin, end = offsets
        if not begin <= end <= self.file.size - start:
            raise self._error(
                f"{name}.data_offsets",
                entry.at["data_offsets"],
                f"is {offsets}; the file holds {self.file.size - start} bytes of data",
                hint="the file is incomplete: download it again",
            )
        bits = math.prod(shape) * DTYPE_BITS[dtype]
        if bits != 8 * (end - begin):
            raise self._error(
                f"{name}.data_offsets",
                entry.at["data_offsets"],
                f"span {end - begin} bytes; {dtype} {shape} takes {bits / 8:g}",
            )
        return StoredTensor(dtype, tuple(shape), start + begin, end - begin, header, name)

    def _error(self, field: str, offset: int | None, problem: str, *, hint: str = "") -> ModelFormatError:
        return ModelFormatError(self.path, field, offset, problem, hint=hint)

    def close(self) -> None:
        self.file.close()


def _is_size(value: Any, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
