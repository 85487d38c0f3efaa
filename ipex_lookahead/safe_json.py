"""JSON from files that nobody vouches for: bounded in size, depth and memory, and unambiguous.

Two readers of the same file must never see two different things, so duplicate keys, NaN, Infinity and lone surrogates
are refused, although Python's own reader takes them.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable
from os import PathLike
from typing import Any, NoReturn

from ipex_lookahead.errors import ModelFormatError

MAX_DEPTH = 64
MAX_CONTAINERS = 2 << 20
"""Most objects and arrays: an empty one takes two bytes in the file, and forty times as many in memory."""
MAX_ITEMS = 16 << 20

File = str | PathLike[str]

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_file(path: File, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Raises ModelFormatError for anything else."""
    try:
        # Opening a named pipe must not wait for its writer; regular files do not care about O_NONBLOCK.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise ModelFormatError(path, "file", None, f"cannot be opened: {error}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError(path, "file", None, "is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(limit + 1) if status.st_size <= limit else None
    except OSError as error:
        raise ModelFormatError(path, "file", None, f"cannot be read: {error}") from None
    finally:
        os.close(descriptor)
    if data is None or len(data) > limit:
        raise ModelFormatError(path, "file", None, f"has {status.st_size} bytes; at most {limit} are allowed")
    return data


def load_object(path: File, limit: int) -> dict[str, Any]:
    """The JSON object in a file of at most ``limit`` bytes. Raises ModelFormatError."""
    value = parse(read_file(path, limit), path)
    if not isinstance(value, dict):
        raise ModelFormatError(path, "JSON", 0, f"holds {kind(value)}; it must be an object")
    return value


def parse(data: bytes, file: File, *, max_depth: int = MAX_DEPTH, offset: int = 0) -> Any:
    """The value that ``data`` spells. ``offset`` is where data begins in ``file``, for messages.

    Raises:
        ModelFormatError: not JSON in UTF-8, nested deeper than ``max_depth``, more objects, arrays or items than any
            checkpoint needs, a duplicate key, NaN or Infinity, a number too large for its type, a lone surrogate.
    """

    def fail(problem: str, at: int | None = 0) -> NoReturn:
        raise ModelFormatError(file, "JSON", None if at is None else offset + at, problem)

    if data.count(b"{") + data.count(b"[") > MAX_CONTAINERS or data.count(b",") > MAX_ITEMS:
        fail(f"has more than {MAX_CONTAINERS} objects and arrays, or more than {MAX_ITEMS} items")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        fail("is not UTF-8", error.start)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        fail(error.msg, len(text[: error.pos].encode("utf-8")))
    except RecursionError:
        fail(f"is nested deeper than {max_depth}", None)
    except ValueError as error:  # ours, and Python's for whole numbers of thousands of digits
        fail(str(error), None)
    if _depth_exceeds(value, max_depth):
        fail(f"is nested deeper than {max_depth}", None)
    if _SURROGATE_ESCAPE.search(data) and _has_surrogate(value):
        fail("a string holds a lone surrogate, which is no character", None)
    return value


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:80]!r} is there twice")
            seen.add(key)
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        level = [item for outer in level for item in _inside(outer) if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _has_surrogate(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if _SURROGATE.search(item):
                return True
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False
