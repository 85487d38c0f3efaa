"""The KV cache on a device, in pages of 64 positions that sequences may share.

A layer's pages are one buffer, and a page has the same number in all layers. Slot s of a sequence is position s once
committed. The rows of a step are written to the slots after ``length``; the next step overwrites rows that were not
committed. Unlike the native core's, layers with a window keep every page: a sequence may be cropped to any length.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.programs import KV_INT8
from ipex_lookahead.errors import BusyError, EngineError, InputError

PAGE = 64


def page_bytes(kv_heads: int, head_dim: int, kv_cache: str) -> int:
    """Return the bytes of one layer's page."""
    return kv_heads * (4 * PAGE * head_dim if kv_cache == "fp16" else 2 * PAGE * head_dim + 8 * PAGE)


class Pages:
    """The pages of one model, with their reference counts. The number of pages grows and never shrinks.

    Attributes:
        buffers: one per layer. Growing replaces them.
        generation: number of times that the buffers have been replaced.
        lock: protects the buffers: one thread may fork a cache, which makes pages grow, while another enqueues kernels.
    """

    def __init__(self, device: Device, layers: int, kv_heads: int, head_dim: int, kv_cache: str) -> None:
        self.device = device
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.bytes = page_bytes(kv_heads, head_dim, kv_cache)
        self.options = () if kv_cache == "fp16" else KV_INT8
        self.buffers = [device.empty(0) for _ in range(layers)]
        self.generation = 0
        self._holders: list[int] = []
        self._free: list[int] = []
        self.lock = threading.RLock()  # a cache may be collected, and give its pages back, anywhere

    @property
    def program(self) -> Any:
        """The program of kernels over rows and heads, for the format of these pages."""
        return self.device.program("rows", "heads", "attention", options=self.options)

    def take(self, count: int) -> list[int]:
        """Allocate pages and return their numbers. Raises EngineError if there is no memory; then none is allocated."""
        with self.lock:
            if count > len(self._free):
                needed, twice = len(self._holders) + count - len(self._free), 2 * len(self._holders)
                try:
                    self._grow(max(needed, twice))
                except EngineError:
                    if twice <= needed:
                        raise
                    self._grow(needed)
            taken = [self._free.pop() for _ in range(count)]
            self.hold(taken)
            return taken

    def _grow(self, count: int) -> None:
        self.generation += 1  # also where memory ends half-way: buffers may be larger than pages are counted
        for layer, old in enumerate(self.buffers):
            if old.size < count * self.bytes:
                new = self.device.empty(count * self.bytes)
                if self._holders:
                    self.device.copy(old, new, len(self._holders) * self.bytes)
                self.buffers[layer] = new  # the old one is given back before the next layer's is made
        self._free += range(count - 1, len(self._holders) - 1, -1)
        self._holders += [0] * (count - len(self._holders))

    def hold(self, numbers: Sequence[int]) -> None:
        """Add a reference to each page."""
        with self.lock:
            for number in numbers:
                self._holders[number] += 1

    def release(self, numbers: Sequence[int]) -> None:
        """Drop a reference to each page. A page without references is free."""
        with self.lock:
            for number in numbers:
                self._holders[number] -= 1
                if self._holders[number] == 0:
                    self._free.append(number)

    def held(self) -> int:
        """Return the number of pages in use."""
        return len(self._holders) - len(self._free)

    def is_shared(self, number: int) -> bool:
        """Return True if a page has more than one reference."""
        return self._holders[number] > 1

    def clear(self, numbers: Sequence[int]) -> None:
        """Set the keys and values of pages to zero."""
        with self.lock:
            for buffer in self.buffers:
                for number in numbers:
                    self.device.clear(buffer, self.bytes, number * self.bytes)

    def copied(self, number: int) -> int:
        """Return the number of a new page with a copy of this page's content."""
        with self.lock:
            (fresh,) = self.take(1)
            for buffer in self.buffers:
                self.device.copy(buffer, buffer, self.bytes, number * self.bytes, fresh * self.bytes)
            return fresh

    def move(self, moves: Sequence[tuple[int, int, int, int]]) -> None:
        """Copy slots in order; each move is (page, slot in page, target page, slot in target page)."""
        device = self.device
        listed = device.upload(np.array(moves, np.int32))
        sizes = (np.int32(self.kv_heads), np.int32(self.head_dim), listed, np.int32(len(moves)))
        with self.lock:
            for buffer in self.buffers:
                kernel = device.kernel(self.program, "move_slots", buffer, *sizes)
                device.enqueue_plain(kernel, (self.head_dim, self.kv_heads))


class OneUser:
    """A base for objects that only one thread may use at a time."""

    def __init__(self) -> None:
        self._busy = threading.Lock()

    @contextmanager
    def claim(self, deed: str) -> Iterator[None]:
        """Lock the object inside the context. Raises BusyError if another thread has locked it."""
        if not self._busy.acquire(blocking=False):
            raise BusyError(
                f"{deed}: the cache is in use by another thread",
                hint="give each thread caches of its own (new_cache, fork)",
            )
        try:
            yield
        finally:
            self._busy.release()


class OpenClCache(OneUser):
    """Keys and values of one sequence. See ``engines.api.Cache``."""

    def __init__(self, pages: Pages) -> None:
        super().__init__()
        self.pages = pages
        self.length = 0
        self.held: list[int] = []
        self._parents: list[int] = []
        weakref.finalize(self, pages.release, self.held).atexit = False

    def prepare(self, rows: int) -> None:
        """Make the slots from ``length`` on writable: pages exist and are not shared."""
        first, needed = self.length // PAGE, -(-(self.length + rows) // PAGE)
        for i in range(first, min(needed, len(self.held))):
            if self.pages.is_shared(self.held[i]):
                shared, self.held[i] = self.held[i], self.pages.copied(self.held[i])
                self.pages.release([shared])
        if needed > len(self.held):
            self.held += self.pages.take(needed - len(self.held))

    def fill_blank(self, positions: int) -> None:
        """Make an empty sequence one of ``positions`` zeros, for measuring steps at that length."""
        with self.claim("filling"):
            self.prepare(positions)
            self.pages.clear(self.held)
            self.length = positions

    def set_step(self, parents: list[int]) -> None:
        """Set the parents of the step's rows, which ``keep`` checks paths against."""
        self._parents = parents

    def keep(self, rows: Sequence[int]) -> None:
        """Commit a path of the last step's rows. Raises InputError if it is none, EngineError as all that follow do."""
        try:
            path = [operator.index(row) for row in rows]
        except TypeError as error:
            raise InputError(f"keep takes a list of rows: {error}") from None
        with self.claim("keep"):
            parent = -1
            for row in path:
                if not 0 <= row < len(self._parents):
                    raise InputError(f"keep: row {row} is not one of the last step's {len(self._parents)} rows")
                if self._parents[row] != parent:
                    raise InputError(
                        f"keep: rows must be a path of the last step, root first; row {row} does not follow {parent}"
                    )
                parent = row
            # Rows of a path ascend strictly, so none is overwritten before it is moved.
            moves = [
                (*self._place(self.length + row), *self._place(self.length + i))
                for i, row in enumerate(path)
                if row != i
            ]
            if moves:
                self.pages.move(moves)
            self.length += len(path)
            self._parents = []

    def _place(self, slot: int) -> tuple[int, int]:
        return self.held[slot // PAGE], slot % PAGE

    def crop(self, length: int) -> int:
        """Keep the first ``length`` positions and return ``length``. Raises InputError if there are fewer."""
        try:
            length = operator.index(length)
        except TypeError as error:
            raise InputError(f"crop takes a length: {error}") from None
        with self.claim("crop"):
            if not 0 <= length <= self.length:
                raise InputError(f"crop: length {length} is not between 0 and the present {self.length}")
            self.length = length
            self._parents = []
            needed = -(-length // PAGE)
            self.pages.release(self.held[needed:])
            del self.held[needed:]
            return length

    def fork(self) -> OpenClCache:
        """A second sequence with the same committed prefix."""
        with self.claim("fork"):
            other = OpenClCache(self.pages)
            shared = self.held[: -(-self.length // PAGE)]
            self.pages.hold(shared)
            other.held += shared
            other.length = self.length
            if self._parents and self.length % PAGE:  # keep may still move slots in the last page
                other.held[-1] = self.pages.copied(shared[-1])
                self.pages.release([shared[-1]])
            return other
