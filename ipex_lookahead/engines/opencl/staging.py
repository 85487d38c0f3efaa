"""Copies from a device through pinned memory of the host, which its driver writes to directly.

A driver copies to other memory through a buffer of its own, with waits in between: an NVIDIA H200 did so at 3 GB/s.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST_STAGED = 1 << 16
"""Bytes of the smallest copy that is staged."""
HALF = 4 << 20
"""Bytes of each half of the pinned memory: while one half is filled, the other one is emptied."""


class Staging:
    """Pinned memory of a device, which is allocated at the first copy.

    Args:
        device: the device (:class:`ipex_lookahead.engines.opencl.device.Device`).
        half: bytes of each of its two halves.
    """

    def __init__(self, device: Any, half: int = HALF) -> None:
        self._device, self._half = device, half
        self._lock = threading.Lock()
        self._pinned: Any = None
        self._halves: list[npt.NDArray[np.uint8]] = []

    def read(self, buffer: Any, array: npt.NDArray[Any], offset: int = 0) -> None:
        """Fill a contiguous array with a buffer's bytes from ``offset`` on, after all enqueued commands.

        Raises pyopencl's errors.
        """
        cl, queue = self._device.cl, self._device.queue
        target = array.reshape(-1).view(np.uint8)
        parts = [slice(at, min(at + self._half, len(target))) for at in range(0, len(target), self._half)]
        with self._lock:
            halves = self._halves or self._allocated()

            def start(number: int) -> Any:
                part, half = parts[number], halves[number % 2]
                there = half[: part.stop - part.start]
                return cl.enqueue_copy(queue, there, buffer, src_offset=offset + part.start, is_blocking=False)

            event = start(0)
            for number, part in enumerate(parts):
                event.wait()
                if number + 1 < len(parts):
                    event = start(number + 1)
                target[part] = halves[number % 2][: part.stop - part.start]

    def _allocated(self) -> list[npt.NDArray[np.uint8]]:
        """Allocate the pinned memory, which stays mapped."""
        cl, device = self._device.cl, self._device
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        self._pinned = device.objects.make("Buffer", device.context, flags, 2 * self._half)
        access = cl.map_flags.READ | cl.map_flags.WRITE
        mapped, _ = cl.enqueue_map_buffer(
            device.queue, self._pinned, access, 0, (2 * self._half,), np.uint8, is_blocking=True
        )
        self._halves = [mapped[: self._half], mapped[self._half :]]
        return self._halves
