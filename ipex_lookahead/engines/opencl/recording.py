"""Recorded launches, which a device runs again as one command (cl_khr_command_buffer)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipex_lookahead.engines.opencl.extensions import loader
from ipex_lookahead.engines.opencl.self_test import self_test_inputs
from ipex_lookahead.errors import EngineError

EXTENSION = "cl_khr_command_buffer"
NAMES = ("clCreateCommandBufferKHR", "clCommandNDRangeKernelKHR", "clFinalizeCommandBufferKHR",
         "clEnqueueCommandBufferKHR", "clReleaseCommandBufferKHR")  # fmt: skip

Sized = tuple[Any, tuple[int, ...], tuple[int, ...]]
"""A kernel with its arguments, its number of work-items, and the work-items of a work-group."""


class Recorder:
    """The extension's functions for one device's queue. Raises EngineError if the driver lacks one."""

    def __init__(self, device: Any) -> None:
        self._device = device
        library, platform = loader(device.cl), ctypes.c_void_p(device.raw.platform.int_ptr)
        self._calls: dict[str, Any] = {}
        for name in NAMES:
            address = library.clGetExtensionFunctionAddressForPlatform(platform, name.encode())
            if not address:
                raise EngineError(f"the driver has no {name}", hint="update the device's driver")
            kind = ctypes.c_void_p if name == NAMES[0] else ctypes.c_int32
            self._calls[name] = ctypes.CFUNCTYPE(kind)(address)
        self._queue = ctypes.c_void_p(device.queue.int_ptr)

    def record(self, launches: Sequence[Sized]) -> Recorded:
        """Record launches, in this order, with the arguments that their kernels have now."""
        error = ctypes.c_int32()
        one = ctypes.c_uint32(1)
        raw = self._calls[NAMES[0]](one, ctypes.byref(self._queue), None, ctypes.byref(error))
        self._check(error.value, "created")
        buffer = ctypes.c_void_p(raw)
        recorded: Recorded = self._device.objects.add(Recorded(self, buffer, [kernel for kernel, _, _ in launches]))
        for kernel, size, local in launches:
            sizes = [(ctypes.c_size_t * len(size))(*numbers) for numbers in (size, local)]
            # No queue but the buffer's own, no properties, no offset; nothing to wait for, since the queue is in order.
            status = self._calls[NAMES[1]](
                buffer, None, None, ctypes.c_void_p(kernel.int_ptr), ctypes.c_uint32(len(size)), None, *sizes,
                ctypes.c_uint32(0), None, None, None,
            )  # fmt: skip
            self._check(status, "recorded")
        self._check(self._calls[NAMES[2]](buffer), "finished")
        return recorded

    def enqueue(self, buffer: Any) -> None:
        """Enqueue a buffer. It must have finished before it is enqueued again."""
        nothing = ctypes.c_uint32(0)
        self._check(self._calls[NAMES[3]](nothing, None, buffer, nothing, None, None), "run")

    def release(self, buffer: Any) -> None:
        """Release a buffer."""
        self._calls[NAMES[4]](buffer)

    def _check(self, status: int, deed: str) -> None:
        if status != 0:
            raise EngineError(
                f"a command buffer of {self._device.name} could not be {deed}: OpenCL's error {status}",
                hint="update the device's driver",
            )


class Recorded:
    """A recorded command buffer, which is released when it is garbage collected."""

    def __init__(self, recorder: Recorder, buffer: Any, kernels: list[Any]) -> None:
        self._recorder, self._buffer, self._kernels = recorder, buffer, kernels
        weakref.finalize(self, recorder.release, buffer).atexit = False

    def enqueue(self) -> None:
        """Enqueue the buffer. See :meth:`Recorder.enqueue`."""
        self._recorder.enqueue(self._buffer)


def recorder_of(device: Any) -> tuple[Recorder | None, str]:
    """Return a device's recorder and "used", or None and the reason."""
    if EXTENSION not in device.extensions:
        return None, "not offered"
    try:
        recorder = Recorder(device)
        wrong = _check(device, recorder)
    except EngineError as error:
        wrong = str(error)
    return (None, f"its self-test failed: {wrong}") if wrong else (recorder, "used")


def _check(device: Any, recorder: Recorder) -> str:
    """Compare two recorded launches, the second of which reads the first's output, with plain ones, twice."""
    arrays = self_test_inputs()
    count = len(arrays[0])
    x, *rest = (device.upload(array) for array in arrays)
    made, again, dots = (device.empty(32 * count) for _ in range(3))
    program = device.program("self_test")
    size = (device.lane_groups(count // 16), 1)
    launches = [
        (device.kernel(program, "self_test", source, *rest, target, dots), size, (device.width, 1))
        for source, target in ((x, made), (made, again))
    ]
    recorded = recorder.record(launches)
    for factor in (np.float32(1), np.float32(1.5)):
        device.write(x, arrays[0] * factor)
        for kernel, all_items, local in launches:
            device.cl.enqueue_nd_range_kernel(device.queue, kernel, all_items, local)
        expected = device.read(again, (8 * count,), np.float32).tobytes()
        device.write(again, np.zeros(8 * count, np.float32))
        device.write(made, np.zeros(8 * count, np.float32))
        recorded.enqueue()
        if device.read(again, (8 * count,), np.float32).tobytes() != expected:
            return "recorded launches give other bytes"
    return ""
