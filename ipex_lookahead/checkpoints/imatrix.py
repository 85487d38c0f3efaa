"""llama.cpp's importance matrices, of both kinds: how much each input of each weight matrix matters.

An entry is the sum, over the tokens of some text, of the squares of a matrix's inputs. The GGUF kind holds sums and
counts of tokens in two tensors an entry; the older kind (``.dat``) is a sequence of records: name, number of calls,
values, the values being means times that number. Both are little-endian, and checked before anything is allocated.
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
        means: name of a GGUF tensor -> mean squares of its inputs, float32 [n], or [experts * n] for stacked experts.
            An expert that no token reached has only ones.
        datasets: the texts it was made from, as the file names them.
        tables: names of a model's tensors that are read by row: they have no inputs, so no entry is theirs.
    """

    path: Path
    means: Mapping[str, Floats]
    datasets: tuple[str, ...] = ()
    tables: frozenset[str] = frozenset()

    def of(self, tensor: Tensor) -> Floats | None:
        """The importance of a matrix's inputs, float32 [n_in], or None where there is no entry.

        Raises ModelFormatError for an entry of another size.
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
                self.path, name, None, f"has {values.size} values; the model asks for {n_in}{experts}",
                hint="the importance matrix was made with another model",
            )  # fmt: skip
        first = (place.expert or 0) * n_in if stacked else 0
        return values[first : first + n_in]

    def missing(self, tensors: Iterable[Tensor], spec: ModelSpec) -> list[str]:
        """The names of those matrices that have no entry.

        Raises ModelFormatError for entries of another size, and where none of the model's matrices has an entry.
        """
        found = {tensor.name: self.of(tensor) is not None for tensor in tensors}
        if found and not any(found.values()):
            raise ModelFormatError(
                self.path, "entries", None,
                f"{len(self.means)} entries, such as {next(iter(self.means))!r}, and none is of a matrix of this "
                f"{spec.model_type} model",
                hint="give the importance matrix of this model",
            )  # fmt: skip
        return [name for name, there in found.items() if not there]


def names_of(tensor: Tensor) -> tuple[str, ...]:
    """What an entry for a matrix may be called: as its GGUF tensor, or as it was in files of another time.

    A tied embedding has the inputs of the output layer that it is; llama.cpp calls those after that layer.
    """
    name = tensor.gguf.name
    if tensor.gguf.expert is not None:
        return name, name.replace("_exps.", f".{tensor.gguf.expert}.")
    return (name, "output.weight") if name == "token_embd.weight" else (name,)


def read_imatrix(path: str | PathLike[str]) -> Imatrix:
    """An importance matrix of either kind.

    Raises ModelFormatError for what is none: with file, field and offset.
    """
    file = BinaryFile(path)
    try:
        if file.size < _I32.size:
            raise ModelFormatError(path, "file", 0, f"has {file.size} bytes, which is no importance matrix")
        gguf = file.read(0, len(MAGIC), "magic") == MAGIC
        return _from_gguf(path) if gguf else _from_records(file)
    finally:
        file.close()


# ---- the GGUF kind ---------------------------------------------------------------------------------------------------


def _from_gguf(path: str | PathLike[str]) -> Imatrix:
    file = GgufFile(path)
    try:
        kind = file.scalar(TYPE)
        if kind != KIND:
            said = "is missing" if kind is None else f"is {str(kind)[:60]!r}"
            raise file.error(TYPE, file.offsets.get(TYPE), f"{said}; an importance matrix has {KIND!r}",
                             hint="give the file that llama-imatrix or ipex-lookahead imatrix wrote")  # fmt: skip
        file.read_tensor_table()
        if not file.tensors:
            raise file.error("tensor_count", None, "there is no tensor, so that nothing is said of any matrix")
        means = {}
        stems = [_stem(tensor) for tensor in file.tensors.values()]
        for tensor, (stem, suffix) in zip(file.tensors.values(), stems, strict=True):
            other = stem + (COUNTS if suffix == SUMS else SUMS)
            if other not in file.tensors:
                raise tensor.error(tensor.entry, f"stands alone: there is no {other}")
            if suffix == SUMS:
                means[stem] = _means(tensor, file.tensors[other])
        datasets = file.metadata.get(DATASETS, [])
        named = tuple(datasets) if isinstance(datasets, list) else ()
        return Imatrix(Path(path), means, named)
    finally:
        file.close()


def _stem(tensor: GgufTensor) -> tuple[str, str]:
    """A tensor's name without what it ends in, and that."""
    for suffix in (SUMS, COUNTS):
        if tensor.name.endswith(suffix) and tensor.name != suffix:
            if tensor.type.format != "fp32":
                raise tensor.error(tensor.entry, f"has type {tensor.type.name}; it must be F32")
            return tensor.name.removesuffix(suffix), suffix
    raise tensor.error(tensor.entry, f"is neither sums ({SUMS}) nor counts ({COUNTS})")


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
    """Raise ModelFormatError for a NaN, an infinity or a number below 0."""
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        at = int(bad.argmax())
        raise ModelFormatError(
            path, field, offset + 4 * at, f"value {at} is {values[at]:g}; sums of squares and counts are at least 0"
        )


# ---- the older kind --------------------------------------------------------------------------------------------------


def _from_records(file: BinaryFile) -> Imatrix:
    records = _Records(file)
    count = records.number("number of entries")
    if not 1 <= count <= (file.size - _I32.size) // _SMALLEST_RECORD:
        raise ModelFormatError(
            file.path, "number of entries", 0, f"is {count}, which {file.size} bytes cannot hold",
            hint="this is no importance matrix, or not all of one",
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
    if records.at < file.size:  # files of before 2024 end here
        records.number("number of chunks")
        if records.at < file.size:
            datasets = tuple(filter(None, (records.text("text's name", MAX_DATASET),)))
    if records.at < file.size:
        raise ModelFormatError(file.path, "file", records.at, f"{file.size - records.at} bytes follow the last field")
    return Imatrix(file.path, means, datasets)


class _Records:
    """Reads values one after another; nothing is taken that the file has not."""

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
                hint="the file is incomplete, or none of this kind",
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
    """An importance matrix of the GGUF kind, which llama-quantize reads too.

    Args:
        path: the file; what is there is replaced.
        sums: name of a GGUF tensor -> sums of squares of its inputs, [n_in]; of stacked experts [experts, n_in].
        counts: the same names -> how many tokens are in the sums, a number; of stacked experts [experts].
        dataset: the text's name.
        chunks: how many pieces of it there were.
        chunk: tokens of a piece.
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
