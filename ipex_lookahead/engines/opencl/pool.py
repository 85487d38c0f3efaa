"""Pieces of equal size in a device's buffers, with reference counts: pages of the KV cache, and recurrent states."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipex_lookahead.engines.cache_images import Bytes
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.errors import EngineError


class Pool:
    """Pieces of one buffer per layer. A piece has the same number in all layers. Their count grows and never shrinks.

    Args:
        device: the owner of the buffers.
        sizes: the bytes of a piece, by layer.
        growth: factor by which the number of pieces grows, if there is memory for it.
        lock: shared by pools with buffers that the same kernels read; None: a new one.

    Attributes:
        buffers: one per layer. Growing replaces them.
        generation: number of times that the buffers have been replaced.
        lock: protects the buffers: one thread may take pieces, which may replace them, while another enqueues kernels.
    """

    def __init__(
        self, device: Device, sizes: Sequence[int], growth: float = 2, lock: threading.RLock | None = None
    ) -> None:
        self.device, self.sizes = device, list(sizes)
        self.buffers: list[Any] = [device.empty(0) for _ in sizes]
        self.generation = 0
        self.lock = lock or threading.RLock()  # a cache may be collected, and give its pieces back, anywhere
        self._growth = growth
        self._holders: list[int] = []
        self._free: list[int] = []

    def take(self, count: int) -> list[int]:
        """Allocate pieces and return their numbers. Raises EngineError, and allocates none, if there is no memory."""
        with self.lock:
            if count > len(self._free):
                needed, more = len(self._holders) + count - len(self._free), int(self._growth * len(self._holders))
                try:
                    self._grow(max(needed, more))
                except EngineError:
                    if more <= needed:
                        raise
                    self._grow(needed)
            taken = [self._free.pop() for _ in range(count)]
            self.hold(taken)
            return taken

    def _grow(self, count: int) -> None:
        self.generation += 1  # also where memory ends half-way: buffers may be larger than pieces are counted
        for layer, (old, size) in enumerate(zip(self.buffers, self.sizes, strict=True)):
            if old.size < count * size:
                new = self.device.empty(count * size)
                if self._holders:
                    self.device.copy(old, new, len(self._holders) * size)
                self.buffers[layer] = new  # the old one is given back before the next layer's is made
        self._free += range(count - 1, len(self._holders) - 1, -1)
        self._holders += [0] * (count - len(self._holders))

    def hold(self, numbers: Sequence[int]) -> None:
        """Add a reference to each piece."""
        with self.lock:
            for number in numbers:
                self._holders[number] += 1

    def release(self, numbers: Sequence[int]) -> None:
        """Drop a reference to each piece. A piece without references is free."""
        with self.lock:
            for number in numbers:
                self._holders[number] -= 1
                if self._holders[number] == 0:
                    self._free.append(number)

    def held(self) -> int:
        """Return the number of pieces in use."""
        return len(self._holders) - len(self._free)

    def is_shared(self, number: int) -> bool:
        """Return True if a piece has more than one reference."""
        return self._holders[number] > 1

    def clear(self, numbers: Sequence[int]) -> None:
        """Set pieces to zero."""
        with self.lock:
            for buffer, size in zip(self.buffers, self.sizes, strict=True):
                for number in numbers if size else ():
                    self.device.clear(buffer, size, number * size)

    def read(self, numbers: Sequence[int]) -> list[Bytes]:
        """Return the contents of pieces, uint8 [pieces, size] of each layer, as commands enqueued before leave them."""
        found = [np.empty((len(numbers), size), np.uint8) for size in self.sizes]
        places = [(i, layer) for i in range(len(numbers)) for layer, size in enumerate(self.sizes) if size]
        with self.lock:
            wait = self.device.start_read(
                *(
                    (self.buffers[layer], (self.sizes[layer],), np.uint8, numbers[i] * self.sizes[layer])
                    for i, layer in places
                )
            )
        for (i, layer), content in zip(places, wait(), strict=True):
            found[layer][i] = content
        return found

    def write(self, numbers: Sequence[int], contents: Sequence[Bytes]) -> None:
        """Set the contents of pieces, as :meth:`read` returns them."""
        with self.lock:
            events = [
                self.device.start_write(buffer, content, number * size)
                for buffer, size, pieces in zip(self.buffers, self.sizes, contents, strict=True)
                for number, content in zip(numbers, pieces, strict=True)
                if size
            ]
        with self.device.errors("written to"):
            for event in events:
                event.wait()

    def copied(self, number: int) -> int:
        """Return the number of a new piece with a copy of this one's content."""
        with self.lock:
            (fresh,) = self.take(1)
            for buffer, size in zip(self.buffers, self.sizes, strict=True):
                self.device.copy(buffer, buffer, size, number * size, fresh * size)
            return fresh
