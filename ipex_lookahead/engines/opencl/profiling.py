"""The time of each kernel on the device, from a queue that records when kernels start and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ipex_lookahead.engines.opencl.device import Device


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Launches of a kernel.

    Attributes:
        kernel: its name.
        items: work-items of a launch.
        launches: number of launches.
        seconds: time of all launches.
        least: time of the shortest launch, in seconds.
        nbytes: bytes that all launches must read, by ``bytes_of``.
    """

    kernel: str
    items: tuple[int, ...]
    launches: int
    seconds: float
    least: float
    nbytes: int


@dataclass(slots=True)
class Profile:
    """The kernels that ran while a device was profiled.

    Attributes:
        kernels: in descending order of time.
        seconds: from the start of the first kernel to the end of the last one. Time outside kernels is launch overhead.
    """

    kernels: list[KernelTime] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def busy(self) -> float:
        """Seconds in which kernels ran."""
        return sum(one.seconds for one in self.kernels)


@contextmanager
def profiled(device: Device, bytes_of: Callable[[Any], int] = lambda kernel: 0) -> Iterator[Profile]:
    """Time the kernels that run on a device inside the context. The profile is filled when the context ends.

    Command buffers are not used meanwhile. Raises EngineError if the driver offers no queue with times.

    Args:
        device: the device.
        bytes_of: returns the bytes that a launch of a kernel must read (:class:`.traffic.Traffic`).
    """
    cl, before = device.cl, (device.queue, device.launch, device.recorder)
    with device.errors("profiled"):
        device.queue.finish()
        properties = cl.command_queue_properties.PROFILING_ENABLE
        queue = device.objects.make("CommandQueue", device.context, properties=properties)
    events: list[tuple[str, tuple[int, ...], int, Any]] = []

    def launch(queue: Any, kernel: Any, size: tuple[int, ...], local: tuple[int, ...] | None = None) -> Any:
        event = before[1](queue, kernel, size, local)
        events.append((str(kernel.function_name), tuple(size), bytes_of(kernel), event))
        return event

    profile = Profile()
    device.queue, device.launch, device.recorder = queue, launch, None
    try:
        yield profile
    finally:
        device.queue, device.launch, device.recorder = before
        with device.errors("profiled"):
            queue.finish()
    times: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}
    with device.errors("profiled"):
        for name, size, nbytes, event in events:
            times.setdefault((name, size), []).append((event.profile.end - event.profile.start, nbytes))
        if events:
            profile.seconds = (events[-1][-1].profile.end - events[0][-1].profile.start) / 1e9
    found = []
    for (name, size), some in times.items():
        taken, read = zip(*some, strict=True)
        found.append(KernelTime(name, size, len(some), sum(taken) / 1e9, min(taken) / 1e9, sum(read)))
    profile.kernels = sorted(found, key=lambda one: -one.seconds)
