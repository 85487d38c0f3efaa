"""The tensors of a file that ``torch.save`` wrote, read without unpickling: nothing in the file is looked up or called.

Such a file is a ZIP archive, not compressed, of one pickle and the storages' bytes. A pickle is a program. Of a state
dict's only a few words are needed, and they are carried out here on inert values: a global is its name, a call makes
something only for the three names of ``_CALLS``, and every other word or name ends the reading.
"""

from __future__ import annotations

import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from ipex_lookahead.architectures.hparams import shown
from ipex_lookahead.checkpoints.files import BinaryFile
from ipex_lookahead.checkpoints.safetensors_reader import DTYPE_BITS, MAX_DIM, MAX_DIMS, MAX_NAME, MAX_TENSORS
from ipex_lookahead.errors import ModelFormatError

MAX_PICKLE = 16 << 20
"""Bytes of the largest pickle that is read: a tensor takes some hundred."""
MAX_WORDS = 40 * MAX_TENSORS
"""Most words in it: a tensor takes some thirty, and a word of one byte may take sixty in memory."""
MAX_ENTRIES = 2 * MAX_TENSORS

DTYPES = {
    "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "DoubleStorage": "F64",
    "ByteStorage": "U8", "CharStorage": "I8", "ShortStorage": "I16", "IntStorage": "I32", "LongStorage": "I64",
    "BoolStorage": "BOOL",
}  # fmt: skip
"""torch's storages, and safetensors' name of what they hold."""

_ZIP_FAULTS = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
    UnicodeError, ValueError, OverflowError, IndexError, KeyError, OSError,
)  # fmt: skip
"""What the standard library raises for an archive that is none."""
_LOCAL = struct.Struct("<4s22xHH")
"""Of an entry's local header: signature, and the lengths of the name and of what follows it."""


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """One tensor, rows after rows in the file.

    Attributes:
        dtype: safetensors' name of it.
        shape: as it says.
        offset: where its bytes begin in the file.
        crc: the archive's checksum of them; None where they are a part of an entry.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    crc: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


class _Entry(NamedTuple):
    """Where an entry's bytes begin, how many they are, and their checksum."""

    offset: int
    size: int
    crc: int


class TorchFile:
    """A file of ``torch.save``: a dict of names and tensors.

    Attributes:
        tensors: in the file's order.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open and take apart; reads no tensor. Raises ModelFormatError for all that is not such a file."""
        self.path = Path(path)
        self.file = BinaryFile(self.path)
        try:
            self._entries = self._archive()
            self.tensors = self._tensors()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file."""
        self.file.close()

    def _archive(self) -> dict[str, _Entry]:
        """Each entry, by its name without the archive's own."""
        found: dict[str, _Entry] = {}
        try:
            with zipfile.ZipFile(self.path) as archive:
                entries = archive.infolist()
        except _ZIP_FAULTS as error:
            raise self._error("archive", None, f"is no ZIP archive as torch writes it: {error}") from None
        if len(entries) > MAX_ENTRIES:
            raise self._error("archive", None, f"has {len(entries)} entries; at most {MAX_ENTRIES} are read")
        for entry in entries:
            at, what = entry.header_offset, f"the entry {shown(entry.filename)}"
            stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
            if not stored or entry.flag_bits & 1:
                raise self._error("archive", at, f"{what} is compressed or encrypted; torch does neither")
            signature, name, extra = _LOCAL.unpack(self.file.read(at, _LOCAL.size, "archive"))
            if signature != b"PK\x03\x04":
                raise self._error("archive", at, f"{what} does not begin there")
            start = at + _LOCAL.size + name + extra
            if start + entry.file_size > self.file.size:
                raise self._error("archive", start, f"{what} has {entry.file_size} bytes; the file ends before")
            inside = entry.filename.partition("/")[2]
            if inside in found:
                raise self._error("archive", at, f"{what} is there twice")
            found[inside] = _Entry(start, entry.file_size, entry.CRC)
        return found

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise self._error(name, None, "is missing from the archive")
        return self._entries[name]

    def _tensors(self) -> dict[str, PickledTensor]:
        if "byteorder" in self._entries:
            at, size, _ = self._entries["byteorder"]
            if (order := self.file.read(at, min(size, 16), "byteorder")) != b"little":
                raise self._error("byteorder", at, f"is {order!r}; only little-endian files are read")
        start, size, _ = self._entry("data.pkl")
        if size > MAX_PICKLE:
            raise self._error("data.pkl", start, f"has {size} bytes; at most {MAX_PICKLE} are read")
        values = _Words(self, start).run(self.file.read(start, size, "data.pkl"))
        if not isinstance(values, dict) or not values:
            raise self._error("data.pkl", start, "is no dict of tensors")
        for name, value in values.items():
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not isinstance(value, PickledTensor):
                raise self._error(
                    "data.pkl", start, f"holds {name!r:.100}: {type(value).__name__}; it must be names and tensors"
                )
        return values

    def tensor(self, storage: Any, offset: Any, shape: Any, stride: Any) -> PickledTensor:
        """A tensor out of a storage, which is (dtype, entry, elements). Raises ValueError with what is wrong."""
        if not isinstance(storage, _Storage):
            raise ValueError("a tensor without a storage")
        if not _sizes(shape) or not _sizes(stride) or len(shape) != len(stride) or not _sizes((offset,)):
            raise ValueError("a tensor whose shape, stride or offset are no lists of sizes")
        dense = 1
        for n, step in reversed(list(zip(shape, stride, strict=True))):
            if step != dense and n > 1 and 0 not in shape:
                raise ValueError(
                    f"a tensor of shape {list(shape)} with stride {list(stride)}, which is not row after row"
                )
            dense *= n
        width = DTYPE_BITS[storage.dtype] // 8
        start, size, crc = self._entry(f"data/{storage.key}")
        if size != storage.elements * width:
            raise ValueError(f"a storage of {storage.elements} elements in {size} bytes")
        if offset + prod(shape) > storage.elements:
            raise ValueError(f"a tensor of {prod(shape)} elements from {offset} on in a storage of {storage.elements}")
        whole = prod(shape) == storage.elements
        return PickledTensor(storage.dtype, tuple(shape), start + offset * width, crc if whole else None)

    def _error(self, field: str, offset: int | None, problem: str) -> ModelFormatError:
        return ModelFormatError(self.path, field, offset, problem)


@dataclass(frozen=True, slots=True)
class _Global:
    """A name that the pickle would have imported."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str
    elements: int


class _Words:
    """Carries the words of a pickle out, on inert values."""

    def __init__(self, file: TorchFile, start: int) -> None:
        self.file, self.start = file, start
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, pickle: bytes) -> Any:
        """What the pickle leaves. Raises ModelFormatError for a word or name that a state dict does not need."""
        at = 0
        try:
            for count, (word, argument, place) in enumerate(pickletools.genops(pickle)):
                at = place or 0
                if count > MAX_WORDS:
                    raise ValueError(f"more than {MAX_WORDS} words")
                if word.name == "STOP":
                    break
                self.carry_out(word.name, argument)
            return self.stack.pop()
        except ModelFormatError:
            raise
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error) as error:
            raise ModelFormatError(self.file.path, "data.pkl", self.start + at, f"is no state dict: {error}") from None

    def carry_out(self, word: str, argument: Any) -> None:
        """One word. Raises ValueError where it is none that is needed."""
        stack = self.stack
        if word in _CONSTANTS:
            stack.append(_CONSTANTS[word]())
        elif word in ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"):
            stack.append(argument)
        elif word == "GLOBAL":
            stack.append(_Global(argument.replace(" ", ".")))
        elif word in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif word in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif word == "MARK":
            self.marks.append(len(stack))
        elif word == "TUPLE":
            stack.append(tuple(self.to_mark()))
        elif word in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(word[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif word == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif word == "REDUCE":
            arguments = stack.pop()
            stack.append(self.call(stack.pop(), arguments))
        elif word == "SETITEM":
            value = stack.pop()
            self.set([stack.pop(), value])
        elif word == "SETITEMS":
            self.set(self.to_mark())
        elif word == "BUILD":  # the versions of modules that an OrderedDict carries along
            stack.pop()
            if not isinstance(stack[-1], dict):
                raise ValueError(f"the state of {_spoken(stack[-1])}")
        elif word not in ("PROTO", "FRAME"):
            raise ValueError(f"the word {word}, which no state dict needs")

    def to_mark(self) -> list[Any]:
        """What lies above the last mark, taken off with it."""
        at = self.marks.pop()
        found = self.stack[at:]
        del self.stack[at:]
        return found

    def set(self, items: list[Any]) -> None:
        """Pairs of names and values into the dict on top."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise ValueError("items that are no names and values of a dict")
        if twice := [key for key in items[::2] if key in target]:
            raise ValueError(f"{twice[0]!r:.100} twice")
        target.update(zip(items[::2], items[1::2], strict=True))

    def call(self, function: Any, arguments: Any) -> Any:
        """What one of the three calls gives. Raises ValueError for another, by its name."""
        name = function.name if isinstance(function, _Global) else ""
        if name not in _CALLS or not isinstance(arguments, tuple):
            raise ValueError(
                f"a call of {_spoken(function)}; only tensors and their dict are made ({', '.join(_CALLS)})"
            )
        return _CALLS[name](self.file, arguments)


def _rebuilt(file: TorchFile, arguments: tuple[Any, ...]) -> Any:
    if not 4 <= len(arguments) <= 7:
        raise ValueError("a tensor of too few or too many arguments")
    return file.tensor(*arguments[:4])


def _parameter(file: TorchFile, arguments: tuple[Any, ...]) -> Any:
    if not arguments or not isinstance(arguments[0], PickledTensor):
        raise ValueError("a parameter without a tensor")
    return arguments[0]


def _dict(file: TorchFile, arguments: tuple[Any, ...]) -> Any:
    if arguments:
        raise ValueError("an OrderedDict made of something")
    return {}


_CALLS: dict[str, Callable[[TorchFile, tuple[Any, ...]], Any]] = {
    "torch._utils._rebuild_tensor_v2": _rebuilt,
    "torch._utils._rebuild_parameter": _parameter,
    "collections.OrderedDict": _dict,
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "NONE": lambda: None,
}


def _storage(argument: Any) -> _Storage:
    if not isinstance(argument, tuple) or len(argument) != 5 or argument[0] != "storage":
        raise ValueError("a reference to something that is no storage")
    _, kind, key, _, elements = argument
    name = kind.name.removeprefix("torch.") if isinstance(kind, _Global) else ""
    if name not in DTYPES:
        raise ValueError(f"a storage of {_spoken(kind)}; known are {', '.join(DTYPES)}")
    if not isinstance(key, str) or not _sizes((elements,)):
        raise ValueError("a storage whose key is no name or whose length is no size")
    return _Storage(DTYPES[name], key, elements)


def _sizes(values: Any) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) <= MAX_DIMS
        and all(type(value) is int and 0 <= value <= MAX_DIM for value in values)
    )


def _spoken(value: Any) -> str:
    return value.name[:200] if isinstance(value, _Global) else f"a {type(value).__name__}"


def chunks(file: TorchFile, tensor: PickledTensor, name: str, size: int = 16 << 20) -> Iterator[bytes]:
    """A tensor's bytes, ``size`` at a time.

    Raises ModelFormatError if the file has been cut meanwhile, and after the last for bytes of another checksum.
    """
    crc = 0
    for start in range(0, tensor.nbytes, size):
        data = file.file.read(tensor.offset + start, min(size, tensor.nbytes - start), name)
        crc = zlib.crc32(data, crc)
        yield data
    if tensor.crc is not None and crc != tensor.crc:
        raise ModelFormatError(
            file.path, name, tensor.offset, "has not the checksum that the archive says", hint="the file is damaged"
        )
