"""What the engines' cache images have in common: their layout, and the order of an import."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec, Tensor
from ipex_lookahead.errors import InputError

Bytes = npt.NDArray[np.uint8]

PAGE = 64
"""Positions of a page. Pieces of an image start at multiples."""

_VERSION = 2
"""Changes with the meaning of the images' bytes, also where an engine computes other values."""


def layout_of(name: str, spec: ModelSpec, kv_cache: str, head: Any) -> str:
    """Return an engine's ``cache_layout``; see :class:`ipex_lookahead.engines.api.ImportsCache`.

    Args:
        name: name of the layout of the engine's images.
        spec: the model. The names of its tensors and its longest context do not matter.
        kv_cache: the format of keys and values.
        head: the drafting head or None.
    """
    digest = hashlib.sha256()
    _add(digest.update, spec)
    if head is not None:
        _add(digest.update, head.spec)
        digest.update(np.ascontiguousarray(head.ids).tobytes())
    return f"{name} images {_VERSION}, {spec.model_type}, {kv_cache}, {digest.hexdigest()[:32]}"


def _add(update: Callable[[bytes], None], part: Any) -> None:
    """Hash a part of a description, without names of tensors and without descriptions of other decoders in it."""
    if isinstance(part, Tensor):
        update(f"tensor {part.shape}\n".encode())
    elif isinstance(part, np.ndarray):
        update(f"array {part.dtype} {part.shape}\n".encode() + part.tobytes())
    elif isinstance(part, tuple | list):
        update(f"{len(part)} parts\n".encode())
        for one in part:
            _add(update, one)
    elif is_dataclass(part):
        update(f"{type(part).__name__}\n".encode())
        for field in fields(part):
            if field.name not in ("max_context", "mtp", "read_past", "unread"):
                _add(update, getattr(part, field.name))
    else:
        update(f"{part!r}\n".encode())


def in_order(
    length: int, pages: Iterable[tuple[int, int, Bytes]], max_context: int
) -> Iterator[tuple[int, int, Bytes]]:
    """Yield pages after a check of their ranges.

    Raises InputError unless they cover [0, length) in order, each from a multiple of 64, within ``max_context``.
    """
    if not 0 <= length <= max_context:
        raise InputError(f"the cache has {length} positions; the model's context has from 0 to {max_context}")
    done = 0
    for first, last, data in pages:
        if first != done or first % PAGE or not first < last <= length:
            raise InputError(f"the pages of positions {first} to {last} do not follow the first {done} of {length}")
        yield first, last, image_bytes(data)
        done = last
    if done != length:
        raise InputError(f"the pages have the first {done} positions of {length}")


def image_bytes(data: Any) -> Bytes:
    """Return contiguous bytes. Raises InputError unless ``data`` is a numpy array of one dimension, uint8."""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 1:
        raise InputError(f"an image is an array of bytes, uint8 [n], and this is {type(data).__name__}")
    return np.ascontiguousarray(data)


class ImageReader:
    """An image's bytes in order, of which every size is checked.

    Args:
        data: uint8 [bytes].

    Attributes:
        left: number of bytes that were not taken.
    """

    def __init__(self, data: Any) -> None:
        self._data = image_bytes(data)
        self.left = len(self._data)

    def take(self, shape: tuple[int, ...], dtype: Any = np.uint8) -> npt.NDArray[Any]:
        """Return the next bytes as an array. Raises InputError if there are fewer."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > self.left:
            raise InputError(f"the image ends too early: {self.left} bytes are left for {size}")
        first = len(self._data) - self.left
        self.left -= size
        found: npt.NDArray[Any] = self._data[first : first + size].view(dtype).reshape(shape)
        return found

    def number(self, least: int, most: int, what: str) -> int:
        """Return the next number, int64. Raises InputError if it is out of range."""
        (number,) = map(int, self.take((1,), np.int64))
        if not least <= number <= most:
            raise InputError(f"the image's {what} is {number}; it must be from {least} to {most}")
        return number

    def ids(self, count: int, most: int, what: str) -> list[int]:
        """Return the next numbers, int32. Raises InputError if one is not from 0 to ``most`` - 1."""
        found = self.take((count,), np.int32)
        if count and not (found.min() >= 0 and found.max() < most):
            raise InputError(f"the image has a {what} that is not from 0 to {most - 1}")
        return [int(one) for one in found]

    def finish(self) -> None:
        """Raise InputError if there are further bytes."""
        if self.left:
            raise InputError(f"the image has {self.left} bytes too many")


def joined(*parts: npt.ArrayLike) -> Bytes:
    """Return the bytes of arrays, and of numbers as int64."""
    arrays = [np.ascontiguousarray(part, np.int64 if isinstance(part, int) else None) for part in parts]
    return np.concatenate([np.zeros(0, np.uint8), *(array.reshape(-1).view(np.uint8) for array in arrays)])


def check_range(first: int, last: int, length: int) -> None:
    """Raise InputError unless [first, last) is a range of ``length`` positions for ``export_pages``."""
    if first % PAGE or not 0 <= first < last <= length:
        raise InputError(
            f"export_pages: [{first}, {last}) is not a range of the {length} positions that starts at a multiple of"
            f" {PAGE}"
        )
