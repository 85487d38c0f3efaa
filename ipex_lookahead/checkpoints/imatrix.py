"""llama.cpp's importance matrices in both file formats: the importance of each input of each weight matrix.

An entry is the sum of the squares of a matrix's inputs over the tokens of a text. The GGUF format has two tensors per
entry, sums and token counts. The older format (``.dat``) is a sequence of records with name, number of calls, and
values (means times the number of calls). Both are little-endian and validated before memory is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec, Tensor
from ipex_lookahead.checkpoints.files import BinaryFile
from ipex_lookahead.checkpoints.gguf_reader import MAGIC, MAX_NAME, GgufFile, GgufTensor
from ipex_lookahead.errors import ModelFormatError

Floats = npt.NDArray[np.float32]

SUMS, COUNTS = ".in_sum2", ".counts"
TYPE, DATASETS, CHUNKS, CHUNK = "general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
KIND = "imatrix"
MAX_DATASET = 1 << 20
_I32 = struct.Struct("<i")
_SMALLEST_RECORD = 3 * _I32.size + 1 + 4


@dataclass(frozen=True, slots=True, eq=False)
class Imatrix:
    """An importance matrix.

    Attributes:
        path: the file.
        means: name of a GGUF tensor -> mean squares of its inputs, float32 [n], or [experts * n] for stacked experts;
            all ones for an expert that no token reached.
        datasets: names of the calibration texts in the file.
        tables: names of a model's tensors that are accessed by row: they have no inputs and therefore no entry.
    """

    path: Path
    means: Mapping[str, Floats]
    datasets: tuple[str, ...] = ()
    tables: frozenset[str] = frozenset()

    def of(self, tensor: Tensor) -> Floats | None:
        """Return the importance of a matrix's inputs, float32 [n_in], or None without an entry.

        Raises:
            ModelFormatError: if the entry has another size.
        """
        for name in () if tensor.name in self.tables else names_of(tensor):
            if name in self.means:
                return self._part(self.means[name], name, tensor)
        return None

    def _part(self, values: Floats, name: str, tensor: Tensor) -> Floats:
        n_in, place = tensor.shape[1], tensor.gguf
        stacked = place.expert is not None and name == place.name
        wanted = n_in * (place.shape[0] if stacked else 1)
        if values.size != wanted:
            experts = f" for each of {place.shape[0]} experts" if stacked else ""
            raise ModelFormatError(
                self.path, name, None, f"has {values.size} values; the model needs {n_in}{experts}",
                hint="the importance matrix was made with another model",
            )  # fmt: skip
        first = (place.expert or 0) * n_in if stacked else 0
        return values[first : first + n_in]

    def missing(self, tensors: Iterable[Tensor], spec: ModelSpec) -> list[str]:
        """Return the names of the matrices without an entry.

        Raises:
            ModelFormatError: if an entry has another size, or no matrix of the model has an entry.
        """
        found = {tensor.name: self.of(tensor) is not None for tensor in tensors}
        if found and not any(found.values()):
            raise ModelFormatError(
                self.path, "entries", None,
                f"none of the {len(self.means)} entries, such as {next(iter(self.means))!r}, matches a matrix of this "
                f"{spec.model_type} model",
                hint="give the importance matrix of this model",
            )  # fmt: skip
        return [name for name, there in found.items() if not there]


def names_of(tensor: Tensor) -> tuple[str, ...]:
    """Return the possible names of a matrix's entry: its GGUF tensor, and names in older files.

    A tied embedding has the inputs of the output layer, and llama.cpp names its entry after that layer.
    """
    name = tensor.gguf.name
    if tensor.gguf.expert is not None:
        return name, name.replace("_exps.", f".{tensor.gguf.expert}.")
    return (name, "output.weight") if name == "token_embd.weight" else (name,)


def read_imatrix(path: str | PathLike[str]) -> Imatrix:
    """Read an importance matrix in either format; raise ModelFormatError if it is invalid."""
    file = BinaryFile(path)
    try:
        if file.size < _I32.size:
            raise ModelFormatError(path, "file", 0, f"has {file.size} bytes, too few for an importance matrix")
        gguf = file.read(0, len(MAGIC), "magic") == MAGIC
        return _from_gguf(path) if gguf else _from_records(file)
    finally:
        file.close()


# ---- GGUF format -----------------------------------------------------------------------------------------------------


def _from_gguf(path: str | PathLike[str]) -> Imatrix:
    file = GgufFile(path)
    try:
        kind = file.scalar(TYPE)
        if kind != KIND:
            said = "is missing" if kind is None else f"is {str(kind)[:60]!r}"
            raise file.error(TYPE, file.offsets.get(TYPE), f"{said}; in an importance matrix it is {KIND!r}",
                             hint="give a file written by llama-imatrix or ipex-lookahead imatrix")  # fmt: skip
        file.read_tensor_table()
        if not file.tensors:
            raise file.error("tensor_count", None, "is 0: the file has no entries")
        means = {}
        stems = [_stem(tensor) for tensor in file.tensors.values()]
        for tensor, (stem, suffix) in zip(file.tensors.values(), stems, strict=True):
            other = stem + (COUNTS if suffix == SUMS else SUMS)
            if other not in file.tensors:
                raise tensor.error(tensor.entry, f"has no matching {other}")
            if suffix == SUMS:
                means[stem] = _means(tensor, file.tensors[other])
        datasets = file.metadata.get(DATASETS, [])
        named = tuple(datasets) if isinstance(datasets, list) else ()
        return Imatrix(Path(path), means, named)
    finally:
        file.close()


def _stem(tensor: GgufTensor) -> tuple[str, str]:
    """Split a tensor's name into the name of the matrix and the suffix."""
    for suffix in (SUMS, COUNTS):
        if tensor.name.endswith(suffix) and tensor.name != suffix:
            if tensor.type.format != "fp32":
                raise tensor.error(tensor.entry, f"has type {tensor.type.name}; it must be F32")
            return tensor.name.removesuffix(suffix), suffix
    raise tensor.error(tensor.entry, f"ends neither in {SUMS} (sums) nor in {COUNTS} (counts)")


def _means(sums: GgufTensor, counts: GgufTensor) -> Floats:
    values, tokens = _values(sums), _values(counts)
    if values.size % tokens.size:
        raise counts.error(counts.entry, f"has {tokens.size} counts, which do not divide {values.size} sums")
    rows = values.reshape(tokens.size, -1)
    with np.errstate(over="ignore"):
        means: Floats = np.where(tokens[:, None] > 0, rows / np.maximum(tokens[:, None], 1), np.float32(1))
    return means.reshape(-1)


def _values(tensor: GgufTensor) -> Floats:
    values = np.empty(tensor.nbytes // 4, np.float32)
    tensor.file.read_into(tensor.offset, values, tensor.name)
    _check(values, tensor.file.path, tensor.name, tensor.offset)
    return values


def _check(values: Floats, path: Path, field: str, offset: int) -> None:
    """Raise ModelFormatError if a value is NaN, infinite or negative."""
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        at = int(bad.argmax())
        raise ModelFormatError(
            path, field, offset + 4 * at, f"value {at} is {values[at]:g}; sums of squares and counts are at least 0"
        )


# ---- older format ----------------------------------------------------------------------------------------------------


def _from_records(file: BinaryFile) -> Imatrix:
    records = _Records(file)
    count = records.number("number of entries")
    if not 1 <= count <= (file.size - _I32.size) // _SMALLEST_RECORD:
        raise ModelFormatError(
            file.path, "number of entries", 0, f"is {count}, more than {file.size} bytes can hold",
            hint="this is not a complete importance matrix",
        )  # fmt: skip
    means: dict[str, Floats] = {}
    for index in range(count):
        at = records.at
        name = records.text(f"name of entry {index}", MAX_NAME, least=1)
        if name in means:
            raise ModelFormatError(file.path, name, at, "appears twice")
        at = records.at
        calls = records.number(f"calls of {name}")
        if calls < 0:
            raise ModelFormatError(file.path, f"calls of {name}", at, f"is {calls}; it must be at least 0")
        values = records.values(name)
        means[name] = values / np.float32(max(calls, 1))
    datasets: tuple[str, ...] = ()
    if records.at < file.size:  # files before 2024 end here
        records.number("number of chunks")
        if records.at < file.size:
            datasets = tuple(filter(None, (records.text("text's name", MAX_DATASET),)))
    if records.at < file.size:
        raise ModelFormatError(file.path, "file", records.at, f"{file.size - records.at} bytes follow the last field")
    return Imatrix(file.path, means, datasets)


class _Records:
    """Sequential reader that checks every length against the file."""

    def __init__(self, file: BinaryFile) -> None:
        self.file, self.at = file, 0

    def number(self, field: str) -> int:
        value: int = _I32.unpack(self._take(_I32.size, field))[0]
        return value

    def text(self, field: str, most: int, least: int = 0) -> str:
        at = self.at
        length = self.number(f"length of {field}")
        if not least <= length <= most:
            raise ModelFormatError(
                self.file.path, f"length of {field}", at, f"is {length}; it must be {least} to {most}"
            )
        at = self.at
        try:
            text = self._take(length, field).decode()
        except UnicodeDecodeError as error:
            raise ModelFormatError(self.file.path, field, at + error.start, "is not valid UTF-8") from None
        if "\0" in text:
            raise ModelFormatError(self.file.path, field, at, "holds a NUL character")
        return text

    def values(self, name: str) -> Floats:
        at = self.at
        count = self.number(f"number of values of {name}")
        left = (self.file.size - self.at) // 4
        if not 1 <= count <= left:
            raise ModelFormatError(
                self.file.path, f"number of values of {name}", at, f"is {count}; it must be 1 to {left}",
                hint="the file is incomplete or has another format",
            )  # fmt: skip
        values = np.empty(count, np.float32)
        self.file.read_into(self.at, values, name)
        _check(values, self.file.path, name, self.at)
        self.at += values.nbytes
        return values

    def _take(self, count: int, field: str) -> bytes:
        data = self.file.read(self.at, count, field)
        self.at += count
        return data


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_imatrix(
    path: Path,
    sums: Mapping[str, npt.NDArray[np.float64]],
    counts: Mapping[str, npt.ArrayLike],
    *,
    dataset: str,
    chunks: int,
    chunk: int,
) -> None:
    """Write an importance matrix in the GGUF format, which llama-quantize reads as well.

    Args:
        path: the file; an existing file is replaced.
        sums: name of a GGUF tensor -> sums of squares of its inputs, [n_in], or [experts, n_in] for stacked experts.
        counts: the same names -> number of tokens in the sums, a scalar, or [experts] for stacked experts.
        dataset: name of the text.
        chunks: number of chunks of the text.
        chunk: tokens per chunk.
    """
    from gguf import GGUFWriter

    writer: Any = GGUFWriter(path, arch="", use_temp_file=False)
    writer.kv_data[0].pop("general.architecture", None)
    writer.add_type(KIND)
    writer.add_array(DATASETS, [dataset])
    writer.add_uint32(CHUNKS, chunks)
    writer.add_uint32(CHUNK, chunk)
    for name in sorted(sums):
        writer.add_tensor(name + SUMS, np.atleast_2d(sums[name].astype(np.float32)))
        writer.add_tensor(name + COUNTS, np.asarray(counts[name], np.float32).reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
