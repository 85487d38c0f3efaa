"""A file with the KV cache of one text and its tokens: a saved slot of the server, and ``cache.save``.

The records of the file, see :mod:`ipex_lookahead.decoding.cache_chunks`:

    tokens   int32, little-endian, one for each position; or
    keys     int64, little-endian, one for each position, negative for rows of images
    state    parts of ``export_state()``, with the range of their bytes
    pages    ``export_pages(first, last)``, without gaps

The key of the file binds it to the model, to the layout of its caches, and to the tenant of the text.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.cache_chunks import CHUNK_BYTES, Record, read_records, write_records
from ipex_lookahead.engines.api import Engine, ExportsCache, ImportsCache
from ipex_lookahead.errors import CacheFileError, InputError

STEP = 512
"""Positions of a record of pages."""
_MOST_STATE = 2**36
"""Maximum number of bytes of a state."""


def cache_key(engine: Engine, fingerprint: bytes, tenant: str = "") -> bytes:
    """Return the key of the files of a model and a tenant, 32 bytes.

    Args:
        engine: the model's engine.
        fingerprint: of the model's weights, at least 16 bytes.
        tenant: owner of the text, as in ``PrefixCache``.

    Raises InputError for an engine that cannot save caches.
    """
    return hmac.digest(fingerprint, f"{_importing(engine).cache_layout}\0{tenant}".encode(), hashlib.sha256)


def save_cache(file: Path, key: bytes, tokens: npt.NDArray[Any] | Sequence[int], cache: Any) -> int:
    """Write a cache and its tokens to a file, which replaces an older one atomically; return its size in bytes.

    Args:
        file: its folder exists.
        key: see :func:`cache_key`.
        tokens: integers [n], n at least ``cache.length``; negative for rows of images, see
            :func:`~ipex_lookahead.engines.images.row_keys`.
        cache: a cache that no other thread uses, such as a fork. At least one position.

    Raises:
        InputError: the cache is empty, or its engine's caches cannot be saved.
        SaveError: the file cannot be written; an older one is unchanged.
    """
    if not cache.length:
        raise InputError("the KV cache is empty; there is nothing to save")
    return write_records(file, key, records_of(tokens, cache))


def records_of(tokens: npt.NDArray[Any] | Sequence[int], cache: Any) -> Iterator[Record]:
    """Yield the records of a cache and its tokens; see :func:`save_cache`."""
    if not isinstance(cache, ExportsCache):
        raise InputError("the KV caches of this engine cannot be saved", hint='use the engine "native" or "opencl"')
    length: int = cache.length  # type: ignore[attr-defined]  # of a Cache
    keys = np.asarray(tokens[:length], "<i8")
    seen = bool((keys < 0).any())
    yield Record("keys" if seen else "tokens", 0, length, keys.astype("<i8" if seen else "<i4").view(np.uint8))
    state = cache.export_state()
    for first in range(0, max(len(state), 1), CHUNK_BYTES):
        part = state[first : first + CHUNK_BYTES]
        yield Record("state", first, first + len(part), part)
    del state
    for first in range(0, length, STEP):
        last = min(first + STEP, length)
        yield Record("pages", first, last, cache.export_pages(first, last))


def load_cache(file: Path, key: bytes, engine: Engine) -> tuple[npt.NDArray[np.int64], Any]:
    """Return the tokens and the cache in a file.

    Args:
        file: a file that :func:`save_cache` wrote.
        key: the key that it was written with.
        engine: the engine of the model.

    Returns:
        tokens, int64 [n], as they were saved, and a new cache of n positions.

    Raises:
        CacheFileError: the file is missing, damaged, of another model or tenant, or longer than the engine's context.
        InputError: the engine's caches cannot be saved.
        OutOfMemoryError: there is no memory for the cache.
    """
    records = read_records(file, key)
    tokens, cache = read_cache(file, records, engine)
    if next(records, None) is not None:
        raise CacheFileError(file, "is damaged: it has more than the text")
    return tokens, cache


def read_cache(file: Path, records: Iterator[Record], engine: Engine) -> tuple[npt.NDArray[np.int64], Any]:
    """Return the tokens and the cache of the next text in a file's records; see :func:`load_cache`."""
    loads, record = _importing(engine), next(records, None)
    if record is None:
        raise CacheFileError(file, "is damaged: a text is missing")
    kind = {"tokens": "<i4", "keys": "<i8"}.get(record.kind, "<i4")
    whole = len(record.data) % np.dtype(kind).itemsize == 0
    tokens = record.data.view(kind).astype(np.int64) if whole else np.empty(0, np.int64)
    if record.kind not in ("tokens", "keys") or not len(tokens) or record.last != len(tokens):
        raise CacheFileError(file, "is not the KV cache of a text")
    if len(tokens) > engine.max_context:
        context = f"the model's context is {engine.max_context:,}"
        raise CacheFileError(file, f"has {len(tokens):,} tokens; {context}", hint="increase max_context")
    if (record.kind == "tokens" and tokens.min() < 0) or tokens.max() >= engine.vocab_size:
        raise CacheFileError(file, "is damaged: a token is not in the vocabulary")
    state, first = _state(file, records)
    try:
        return tokens, loads.import_cache(len(tokens), _pages(file, first, records, len(tokens)), state)
    except CacheFileError:
        raise
    except InputError as error:
        raise CacheFileError(file, f"is damaged: {error}") from None


def _state(file: Path, records: Iterator[Record]) -> tuple[npt.NDArray[np.uint8], Record]:
    """Return the state, and the record after it."""
    parts: list[npt.NDArray[np.uint8]] = []
    size = 0
    for record in records:
        if record.kind != "state":
            return np.concatenate(parts) if parts else np.empty(0, np.uint8), record
        if record.first != size or record.last != size + len(record.data) or record.last > _MOST_STATE:
            break
        parts.append(record.data)
        size = record.last
    raise CacheFileError(file, "is damaged: its parts do not follow each other")


def _pages(
    file: Path, first: Record, records: Iterator[Record], length: int
) -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
    """Yield the pages of a text of ``length`` tokens, ``first`` and those in the next records."""
    for record in chain([first], records):
        if record.kind != "pages":
            raise CacheFileError(file, "is damaged: its parts do not follow each other")
        yield record.first, record.last, record.data
        if record.last >= length:
            return


def _importing(engine: Engine) -> ImportsCache:
    if not isinstance(engine, ImportsCache):
        raise InputError("the KV caches of this engine cannot be saved", hint='use the engine "native" or "opencl"')
    return engine
