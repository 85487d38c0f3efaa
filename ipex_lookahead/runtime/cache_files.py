"""The folder of a model's prefix caches: which engine finds which files, and when they are written."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from ipex_lookahead.decoding.cache_folder import CacheFolder
from ipex_lookahead.decoding.disk_cache import FLUSH_SECONDS, DiskCache
from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.fingerprint import fingerprint
from ipex_lookahead.errors import InputError, arg
from ipex_lookahead.files.paths import given_path

if TYPE_CHECKING:
    from pathlib import Path

CACHE_DISK = 20 * 2**30
"""Maximum size of a folder in bytes, where the caller gives none."""
LEAST_DISK = 2**26


class CacheFiles:
    """The folder in which a model and its draft model store prefixes of texts.

    Args:
        folder: created if it does not exist.
        size: maximum size of its files in bytes, those of other processes included; None: ``CACHE_DISK``.

    Raises InputError for a folder that cannot be used, or a size below ``LEAST_DISK``.
    """

    def __init__(self, folder: str | PathLike[str], size: int | None = None) -> None:
        size = CACHE_DISK if size is None else size
        if size < LEAST_DISK:
            raise InputError(argument="cache_disk", got=size, allowed=f"at least {LEAST_DISK} bytes (64 MiB)")
        self.folder = CacheFolder(given_path(folder).absolute(), size)
        self._prints: weakref.WeakKeyDictionary[Engine, bytes] = weakref.WeakKeyDictionary()

    def add(self, engine: Engine, source: Path | None) -> None:
        """Take the fingerprint of an engine, which no other thread uses.

        Raises InputError if the engine cannot save KV caches.
        """
        if not engine.row_invariant:
            raise InputError(
                f"{arg('cache_dir')} needs an engine with reproducible results, and this is {engine.name}",
                hint="use the engine native or opencl, or leave it out",
            )
        self._prints[engine] = fingerprint(engine, source)

    def fingerprint(self, engine: Engine) -> bytes:
        """Return the fingerprint of an engine that was added, 32 bytes."""
        return self._prints[engine]

    def attach(self, memory: PrefixCache, engine: Engine) -> None:
        """Make the folder the second level of an engine's prefix cache."""
        print_ = self._prints.get(engine)
        memory.disk = None if print_ is None else DiskCache(self.folder, engine, print_)


def write_all(memories: Sequence[PrefixCache | None], seconds: float = FLUSH_SECONDS) -> None:
    """Write what prefix caches hold in memory, for at most this time, and end their threads."""
    for memory in memories:
        if memory is not None and memory.disk is not None:
            memory.flush()
            memory.disk.close(seconds)
