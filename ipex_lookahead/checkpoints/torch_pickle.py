"""Tensors of a ``torch.save`` file, read without unpickling: no name in the file is imported or called.

Such a file is an uncompressed ZIP archive of one pickle and the bytes of the storages. A pickle is a program; a state
dict needs only a few opcodes. They are interpreted here on inert values: a global is just its name, and only the three
functions in ``_CALLS`` can be called. Every other opcode or name is an error.
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
"""Maximum size of the pickle in bytes; a tensor takes about a hundred."""
MAX_OPCODES = 40 * MAX_TENSORS
"""Maximum number of opcodes: a tensor takes about thirty, and an opcode of one byte may take sixty bytes of memory."""
MAX_ENTRIES = 2 * MAX_TENSORS

DTYPES = {
    "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "DoubleStorage": "F64",
    "ByteStorage": "U8", "CharStorage": "I8", "ShortStorage": "I16", "IntStorage": "I32", "LongStorage": "I64",
    "BoolStorage": "BOOL",
}  # fmt: skip
"""Storage class of torch -> safetensors dtype."""

_ZIP_FAULTS = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
    UnicodeError, ValueError, OverflowError, IndexError, KeyError, OSError,
)  # fmt: skip
"""Exceptions of the standard library for an invalid archive."""
_LOCAL = struct.Struct("<4s22xHH")
"""Local header of an entry: signature, length of the name, and length of the extra field."""


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor in row-major order.

    Attributes:
        dtype: safetensors' name of the dtype.
        shape: shape of the tensor.
        offset: position of its data in the file.
        crc: the archive's checksum of the data; None if the tensor is a part of an archive entry.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    crc: int | None = None

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


class _Entry(NamedTuple):
    """Position, size and checksum of an archive entry's data."""

    offset: int
    size: int
    crc: int


class TorchFile:
    """A ``torch.save`` file with a dict of names and tensors.

    Attributes:
        tensors: name to tensor, in the file's order.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open and parse the file without reading tensors; raise ModelFormatError for any other kind of file."""
        self.path = Path(path)
        self.file = BinaryFile(self.path)
        try:
            self._entries = self._archive()
            self.tensors = self._tensors()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.file.close()

    def _archive(self) -> dict[str, _Entry]:
        """Return the archive's entries by name, without the archive's own name."""
        found: dict[str, _Entry] = {}
        try:
            with zipfile.ZipFile(self.path) as archive:
                entries = archive.infolist()
        except _ZIP_FAULTS as error:
            raise self._error("archive", None, f"is not a ZIP archive written by torch: {error}") from None
        if len(entries) > MAX_ENTRIES:
            raise self._error("archive", None, f"has {len(entries)} entries; the maximum is {MAX_ENTRIES}")
        for entry in entries:
            at, what = entry.header_offset, f"the entry {shown(entry.filename)}"
            stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
            if not stored or entry.flag_bits & 1:
                raise self._error("archive", at, f"{what} is compressed or encrypted, which torch never does")
            signature, name, extra = _LOCAL.unpack(self.file.read(at, _LOCAL.size, "archive"))
            if signature != b"PK\x03\x04":
                raise self._error("archive", at, f"{what} does not start there")
            start = at + _LOCAL.size + name + extra
            if start + entry.file_size > self.file.size:
                raise self._error("archive", start, f"{what} has {entry.file_size} bytes and exceeds the file")
            inside = entry.filename.partition("/")[2]
            if inside in found:
                raise self._error("archive", at, f"{what} appears twice")
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
                raise self._error("byteorder", at, f"is {order!r}; only little-endian files are supported")
        start, size, _ = self._entry("data.pkl")
        if size > MAX_PICKLE:
            raise self._error("data.pkl", start, f"has {size} bytes; the maximum is {MAX_PICKLE}")
        values = _Interpreter(self, start).run(self.file.read(start, size, "data.pkl"))
        if not isinstance(values, dict) or not values:
            raise self._error("data.pkl", start, "is not a dict of tensors")
        for name, value in values.items():
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not isinstance(value, PickledTensor):
                raise self._error(
                    "data.pkl", start, f"has {name!r:.100}: {type(value).__name__}; it must be names and tensors"
                )
        return values

    def tensor(self, storage: Any, offset: Any, shape: Any, stride: Any) -> PickledTensor:
        """Return a tensor of a storage; raise ValueError if an argument is invalid."""
        if not isinstance(storage, _Storage):
            raise ValueError("a tensor without a storage")
        if not _sizes(shape) or not _sizes(stride) or len(shape) != len(stride) or not _sizes((offset,)):
            raise ValueError("a tensor with a shape, stride or offset that is not a tuple of sizes")
        dense = 1
        for n, step in reversed(list(zip(shape, stride, strict=True))):
            if step != dense and n > 1 and 0 not in shape:
                raise ValueError(
                    f"a tensor of shape {list(shape)} with stride {list(stride)}, which is not in row-major order"
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
    """A name that unpickling would import."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str
    elements: int


class _Interpreter:
    """Interprets the opcodes of a pickle on inert values."""

    def __init__(self, file: TorchFile, start: int) -> None:
        self.file, self.start = file, start
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, pickle: bytes) -> Any:
        """Return the pickle's result; raise ModelFormatError for an opcode or name that no state dict needs."""
        at = 0
        try:
            for count, (opcode, argument, place) in enumerate(pickletools.genops(pickle)):
                at = place or 0
                if count > MAX_OPCODES:
                    raise ValueError(f"more than {MAX_OPCODES} opcodes")
                if opcode.name == "STOP":
                    break
                self.step(opcode.name, argument)
            return self.stack.pop()
        except ModelFormatError:
            raise
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error) as error:
            raise ModelFormatError(self.file.path, "data.pkl", self.start + at, f"not a state dict: {error}") from None

    def step(self, opcode: str, argument: Any) -> None:
        """Interpret one opcode; raise ValueError if it is not needed for a state dict."""
        stack = self.stack
        if opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode]())
        elif opcode in ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"):
            stack.append(argument)
        elif opcode == "GLOBAL":
            stack.append(_Global(argument.replace(" ", ".")))
        elif opcode in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif opcode == "MARK":
            self.marks.append(len(stack))
        elif opcode == "TUPLE":
            stack.append(tuple(self.to_mark()))
        elif opcode in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(opcode[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif opcode == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif opcode == "REDUCE":
            arguments = stack.pop()
            stack.append(self.call(stack.pop(), arguments))
        elif opcode == "SETITEM":
            value = stack.pop()
            self.set([stack.pop(), value])
        elif opcode == "SETITEMS":
            self.set(self.to_mark())
        elif opcode == "BUILD":  # the module versions that an OrderedDict carries as its state
            stack.pop()
            if not isinstance(stack[-1], dict):
                raise ValueError(f"the state of {_shown(stack[-1])}")
        elif opcode not in ("PROTO", "FRAME"):
            raise ValueError(f"opcode {opcode}, which no state dict needs")

    def to_mark(self) -> list[Any]:
        """Pop the values above the last mark, and the mark."""
        at = self.marks.pop()
        found = self.stack[at:]
        del self.stack[at:]
        return found

    def set(self, items: list[Any]) -> None:
        """Store pairs of keys and values in the dict at the top of the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise ValueError("items that are not names and values of a dict")
        if twice := [key for key in items[::2] if key in target]:
            raise ValueError(f"{twice[0]!r:.100} twice")
        target.update(zip(items[::2], items[1::2], strict=True))

    def call(self, function: Any, arguments: Any) -> Any:
        """Call one of the allowed functions; raise ValueError with the name of any other."""
        name = function.name if isinstance(function, _Global) else ""
        if name not in _CALLS or not isinstance(arguments, tuple):
            raise ValueError(f"a call of {_shown(function)}; only these are allowed: {', '.join(_CALLS)}")
        return _CALLS[name](self.file, arguments)


def _rebuilt(file: TorchFile, arguments: tuple[Any, ...]) -> Any:
    if not 4 <= len(arguments) <= 7:
        raise ValueError("a tensor with too few or too many arguments")
    return file.tensor(*arguments[:4])


def _parameter(file: TorchFile, arguments: tuple[Any, ...]) -> Any:
    if not arguments or not isinstance(arguments[0], PickledTensor):
        raise ValueError("a parameter without a tensor")
    return arguments[0]


def _dict(file: TorchFile, arguments: tuple[Any, ...]) -> Any:
    if arguments:
        raise ValueError("an OrderedDict with arguments")
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
        raise ValueError("a persistent id that is not a storage")
    _, kind, key, _, elements = argument
    name = kind.name.removeprefix("torch.") if isinstance(kind, _Global) else ""
    if name not in DTYPES:
        raise ValueError(f"a storage of {_shown(kind)}; supported are {', '.join(DTYPES)}")
    if not isinstance(key, str) or not _sizes((elements,)):
        raise ValueError("a storage with an invalid key or length")
    return _Storage(DTYPES[name], key, elements)


def _sizes(values: Any) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) <= MAX_DIMS
        and all(type(value) is int and 0 <= value <= MAX_DIM for value in values)
    )


def _shown(value: Any) -> str:
    return value.name[:200] if isinstance(value, _Global) else f"a {type(value).__name__}"


def chunks(file: TorchFile, tensor: PickledTensor, name: str, size: int = 16 << 20) -> Iterator[bytes]:
    """Yield a tensor's bytes, ``size`` at a time.

    Raises:
        ModelFormatError: if the file was truncated meanwhile, or, after the last chunk, if the checksum is wrong.
    """
    crc = 0
    for start in range(0, tensor.nbytes, size):
        data = file.file.read(tensor.offset + start, min(size, tensor.nbytes - start), name)
        crc = zlib.crc32(data, crc)
        yield data
    if tensor.crc is not None and crc != tensor.crc:
        raise ModelFormatError(
            file.path, name, tensor.offset, "does not match the checksum in the archive", hint="the file is damaged"
        )
