"""A GGUF model in one file or in the parts that ``llama-gguf-split`` and converters write.

Parts are named ``NAME-00001-of-00003.gguf``. Each is a GGUF file with its own tensor table. ``split.no`` is its number,
starting at 0, ``split.count`` the number of parts, ``split.tensors.count`` the number of tensors of all parts. The
first part has the model's metadata.
"""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ipex_lookahead.checkpoints.gguf_reader import GgufFile, GgufTensor
from ipex_lookahead.errors import ModelFormatError

PART_NAME = re.compile(r"(?P<model>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
"""File name of a part; ``part`` counts from 1."""
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def first_part(path: str | PathLike[str]) -> Path:
    """Return the path of the first part for any part, by its name; other paths are returned as they are."""
    path = Path(path)
    named = PART_NAME.fullmatch(path.name)
    return path if named is None else path.with_name(f"{named['model']}-00001-of-{named['parts']}.gguf")


class GgufParts:
    """Metadata and combined tensor table of a GGUF model, with the interface of :class:`GgufFile`.

    Attributes:
        path: the file, or the first part even if another part was given.
        metadata, offsets: those of the first part.
        tensors: name to entry, part by part. Empty until :meth:`read_tensor_table`.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Read the metadata of all parts and check that they match. Raises ModelFormatError.

        A file without split metadata is a complete model, whatever its name.
        """
        path = Path(path)
        named = PART_NAME.fullmatch(path.name)
        self._first = GgufFile(path) if named is None else _opened(path, int(named["part"]), int(named["parts"]))
        self._parts = [self._first]
        self.tensors: dict[str, GgufTensor] = {}
        try:
            count = self._whole(self._first, _COUNT, 0)
            if count > 1:
                self._open_others(path, count)
        except BaseException:
            self.close()
            raise
        self.path = self._first.path
        self.metadata = self._first.metadata
        self.offsets = self._first.offsets

    def error(self, field: str, offset: int | None, problem: str, *, hint: str = "") -> ModelFormatError:
        """Return an error for a metadata field, or for a tensor that is in no part."""
        return self._first.error(field, offset, problem, hint=hint)

    def scalar(self, key: str, default: Any = None) -> Any:
        """Return a single value of the metadata, or ``default``; raise ModelFormatError if it is an array."""
        return self._first.scalar(key, default)

    def read_tensor_table(self) -> None:
        """Read and check all tensor tables, including unsupported types. Raises ModelFormatError."""
        for part in self._parts:
            part.read_tensor_table()
            for tensor in part.tensors.values():
                if (other := self.tensors.get(tensor.name)) is not None:
                    raise tensor.error(tensor.entry, f"is in {other.file.path.name} as well")
                self.tensors[tensor.name] = tensor
        if len(self._parts) > 1 and len(self.tensors) != (said := self._whole(self._first, _TENSORS)):
            raise self._first.error(
                _TENSORS, self.offsets[_TENSORS],
                f"is {said}, but the {len(self._parts)} parts have {len(self.tensors)} tensors in total",
                hint="the parts belong to different models: download all of them from one source",
            )  # fmt: skip

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _open_others(self, given: Path, count: int) -> None:
        named = PART_NAME.fullmatch(given.name)
        if named is None or int(named["parts"]) != count:
            raise self._first.error(
                _COUNT, self._first.offsets.get(_COUNT),
                f"is {count}, but the file is named {given.name}; the other parts are found by name, which must be "
                f"NAME-00001-of-{count:05}.gguf and so on",
                hint="restore the published names of the parts",
            )  # fmt: skip
        if first_part(given) != given:
            self._first.close()
            self._first = _opened(first_part(given), 1, count)
            self._parts = [self._first]
        for number in range(2, count + 1):
            name = f"{named['model']}-{number:05}-of-{named['parts']}.gguf"
            self._parts.append(_opened(given.with_name(name), number, count))
        for index, part in enumerate(self._parts):
            for key, expected in ((_NUMBER, index), (_COUNT, count), (_TENSORS, self._whole(self._first, _TENSORS))):
                if (found := self._whole(part, key)) != expected:
                    raise part.error(
                        key, part.offsets[key], f"is {found}; in part {index + 1} of {count} it must be {expected}",
                        hint="the parts belong to different models: download all of them from one source",
                    )  # fmt: skip
            self._check_same_model(part)

    def _check_same_model(self, part: GgufFile) -> None:
        """Raise if metadata that some writers repeat in later parts differ from the first part's."""
        for key, value in part.metadata.items():
            if key == _NUMBER or key == "general.alignment":  # specific to the part
                continue
            if key not in self._first.metadata or not np.array_equal(value, self._first.metadata[key]):
                raise part.error(
                    key, part.offsets[key], f"differs from {self._first.path.name}: this part belongs to another model"
                )

    @staticmethod
    def _whole(part: GgufFile, key: str, default: int | None = None) -> int:
        value = part.scalar(key, default)
        if type(value) is not int or value < 0:
            got = "is missing" if value is None else f"is {value!r}; it must be a whole number"
            raise part.error(key, part.offsets.get(key), got)
        return value


def _opened(path: Path, number: int, count: int) -> GgufFile:
    if not path.exists():
        raise ModelFormatError(
            path, "file", None, f"is missing: it is part {number} of the model's {count} parts",
            hint="download all parts into one folder",
        )  # fmt: skip
    return GgufFile(path)
