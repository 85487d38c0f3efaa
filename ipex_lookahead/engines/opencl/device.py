"""OpenCL devices: the list of devices, their self-test, and the programs built for them.

A device is chosen by its number over all platforms, "opencl:0". Before its first use it must pass the self-test
(``kernels/self_test.cl``): with subgroups and integer dot products if it offers them, else with plain kernels. A device
that fails with plain kernels is refused.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from os import R_OK, W_OK, access, getpid
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.opencl.programs import (
    ARRIVALS,
    DOT,
    SUBGROUPS,
    Spelling,
    Units,
    built,
    flags,
    source,
)
from ipex_lookahead.engines.opencl.recording import recorder_of
from ipex_lookahead.engines.opencl.self_test import check
from ipex_lookahead.engines.opencl.staging import LEAST_STAGED, Staging
from ipex_lookahead.errors import EngineError, InputError, OutOfMemoryError, arg
from ipex_lookahead.hub.folders import cache_folder_if_any
from ipex_lookahead.system.extras import installing

LANES = 16
INTEL_THREADS = 8
"""Threads of one of Intel's vector engines, which are its compute units; each runs a lane group."""
OTHER_LANE_GROUPS = 128
"""Lane groups of a compute unit of other GPUs: 2,048 work-items."""
MAJOR = 22
"""The lowest bit of the major number in OpenCL's version numbers."""
SPELT = {SUBGROUPS: "subgroups", DOT: "integer dot products", ARRIVALS: "arrivals of work-groups"}
USED, NOT_OFFERED = "used", "not offered"
SMALLER = (
    f"use a shorter context, {arg('kv_cache', 'int8')}, a format of fewer bits, or fewer layers on the device"
    f" ({arg('gpu_layers')})"
)


def what_to_do(devices: Path = Path("/dev")) -> str:
    """Return the hint for a machine with an Intel GPU that no driver reports."""
    nodes = sorted((devices / "dri").glob("renderD*"))
    closed = [str(node) for node in nodes if not access(node, R_OK | W_OK)]
    if (devices / "dxg").exists() and not nodes:
        return (
            "under WSL2 the GPU is Windows' own: install Intel's current graphics driver there, run wsl --update, and"
            " install intel-opencl-icd here (docs/intel_gpu.md); there is no group to join"
        )
    if closed:
        return f"this user may not open {closed[0]}: sudo usermod -aG render $USER, then log in again"
    return (
        "install the GPU's OpenCL driver (Debian and Ubuntu: intel-opencl-icd; for a GPU newer than the system a newer"
        " one and a newer kernel, and turn Resizable BAR on: docs/intel_gpu.md); clinfo -l lists what it finds"
    )


def opencl() -> Any:
    """Return the module ``pyopencl``. Raises EngineError if it is not installed or finds no OpenCL loader."""
    try:
        return importlib.import_module("pyopencl")
    except ImportError as error:
        raise EngineError(
            f"the OpenCL engine needs pyopencl, which cannot be imported: {error}", hint=installing("xpu")
        ) from None


@dataclass(frozen=True, slots=True)
class Listed:
    """A device as ``info`` lists it."""

    number: int
    name: str
    platform: str
    driver: str
    kind: str
    memory_bytes: int
    compute_units: int


def listed() -> list[Listed]:
    """Return the OpenCL devices of all platforms in the order of their numbers. Raises as ``opencl``."""
    return [
        Listed(
            number,
            str(raw.name).strip(),
            str(raw.platform.name).strip(),
            str(raw.driver_version),
            "GPU" if raw.type & opencl().device_type.GPU else "CPU" if raw.type & opencl().device_type.CPU else "other",
            int(raw.global_mem_size),
            int(raw.max_compute_units),
        )
        for number, raw in enumerate(_devices())
    ]


@cache
def _first_process() -> int:
    """Return the id of the process that used OpenCL first; a forked process inherits it."""
    return getpid()


def _check_process() -> None:
    """Raise EngineError in a forked process: drivers share memory and commands with it, with undefined results."""
    if _first_process() != getpid():
        raise EngineError(
            "OpenCL has been used in the process that this one was forked from, and its drivers do not work in both",
            hint="load the model after the fork, or start processes with multiprocessing's 'spawn'",
        )


def _devices() -> list[Any]:
    cl = opencl()
    _check_process()
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader's error where there is none
        platforms = []
    found = []
    for platform in platforms:
        with _no_devices_is_an_empty_list():
            found += platform.get_devices()
    return found


@contextmanager
def _no_devices_is_an_empty_list() -> Iterator[None]:
    cl = opencl()
    try:
        yield
    except cl.RuntimeError as error:
        if error.code != cl.status_code.DEVICE_NOT_FOUND:
            raise


def _chosen(name: str | None) -> tuple[int, Any]:
    """Return number and device for a name: "opencl:1" of all, "xpu:1" of the GPUs; None: the first GPU or device."""
    found = _devices()
    if not found:
        raise EngineError("there is no OpenCL device on this machine", hint=what_to_do())
    gpus = [i for i, raw in enumerate(found) if raw.type & opencl().device_type.GPU]
    match = re.fullmatch(r"(opencl|xpu)(?::(\d{1,4}))?", name or "opencl")
    known = ", ".join(f"opencl:{i} ({str(raw.name).strip()})" for i, raw in enumerate(found))
    if match is None or (match[1] == "opencl" and int(match[2] or 0) >= len(found)):
        raise InputError(f"{arg('device', name)}: the OpenCL devices here are {known}")
    if match[1] == "xpu" and int(match[2] or 0) >= len(gpus):
        raise EngineError(
            f"{arg('device', name)}: {len(gpus)} of the OpenCL devices here ({known}) are GPUs",
            hint=f"GPUs are numbered from 0; a number of layers is {arg('gpu_layers')}" if gpus else what_to_do(),
        )
    numbers = gpus if match[1] == "xpu" else range(len(found)) if match[2] else gpus or [0]
    number = numbers[int(match[2] or 0)]
    return number, found[number]


class Objects:
    """The live OpenCL objects of a device: buffers, kernels, queues and recorded commands.

    A forked process inherits them, and some drivers crash when it releases one, also at its exit. So each object gets
    one more reference there, which is never dropped.

    Args:
        cl: pyopencl.
        device: the owner of the context and the programs, which a forked process must not release either.
    """

    def __init__(self, cl: Any, device: Device) -> None:
        # pyopencl's own classes take no weak references.
        self.kinds: dict[str, Any] = {
            name: type(name, (getattr(cl, name),), {}) for name in ("Buffer", "CommandQueue", "Kernel")
        }
        self._device = weakref.ref(device)
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._keep_permanently)

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers."""
        return sum(nbytes for _, nbytes in list(self._alive.values()))

    def make(self, kind: str, *arguments: Any, nbytes: int = 0, **named: Any) -> Any:
        """Make an object of a pyopencl class, which counts ``nbytes`` until it is collected."""
        return self.add(self.kinds[kind](*arguments, **named), nbytes)

    def add(self, made: Any, nbytes: int = 0) -> Any:
        """Count an object until it is collected, which may happen in any thread, and return it."""
        reference = weakref.ref(made, self._forget)
        self._alive[id(reference)] = (reference, nbytes)
        return made

    def _forget(self, reference: weakref.ref[Any]) -> None:
        self._alive.pop(id(reference), None)

    def _keep_permanently(self) -> None:
        alive = [self._device(), *(reference() for reference, _ in list(self._alive.values()))]
        for one in alive:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


class Device:
    """One device with an in-order queue.

    Args:
        name: "opencl:1" of all devices, "xpu:1" of the GPUs, "xpu" the first of them; None and "opencl": the first GPU,
            or the first device where there is none.
        spelling: the features that kernels use; None: the best combination that passes the self-test.

    Raises:
        InputError: there is no device of that name.
        EngineError: no pyopencl, no device, or the device fails the self-test.
    """

    def __init__(self, name: str | None = None, spelling: Spelling | None = None) -> None:
        self.cl = opencl()
        self.number, self.raw = _chosen(name)
        self.name = str(self.raw.name).strip()
        self.memory, self.largest_buffer = int(self.raw.global_mem_size), int(self.raw.max_mem_alloc_size)
        self.objects = Objects(self.cl, self)
        with self.errors("opened"):
            self.context = self.cl.Context([self.raw])
            self.queue = self.objects.make("CommandQueue", self.context)
        self.staging = Staging(self) if self.is_gpu and not self.raw.host_unified_memory else None
        """Pinned memory for large copies from a GPU with memory of its own."""
        self.launch: Any = self.cl.enqueue_nd_range_kernel
        """Enqueues a kernel: queue, kernel, work-items, work-items of a work-group. A profile replaces it."""
        self.extensions = frozenset(str(self.raw.extensions).split())
        self.lock = threading.RLock()
        """Held while the device's abilities are tested."""
        self._programs: dict[tuple[str, ...], Any] = {}
        self.paths = dict.fromkeys(SPELT.values(), NOT_OFFERED)
        """Optional features of kernels -> "used", or the reason why not."""
        self.spelling: Spelling = ()
        self._first_that_passes(self._spellings() if spelling is None else [spelling])
        self.recorder, self.paths["command buffers"] = recorder_of(self)
        self.units = Units()
        self.concurrency = self._concurrency()
        """The number of lane groups that the device runs at the same time; 1 on CPUs, which take one after another."""

    @property
    def is_gpu(self) -> bool:
        """True if the driver reports a GPU."""
        return bool(self.raw.type & self.cl.device_type.GPU)

    def _concurrency(self) -> int:
        if not self.is_gpu:
            return 1
        is_intel = "cl_intel_subgroups" in self.extensions
        return int(self.raw.max_compute_units) * (INTEL_THREADS if is_intel else OTHER_LANE_GROUPS)

    def _spellings(self) -> list[Spelling]:
        """Return the combinations of features that the device reports, best first."""
        best: Spelling = ()
        if self.extensions >= {"cl_intel_subgroups", "cl_intel_required_subgroup_size"}:
            best += (SUBGROUPS,)
        if "cl_khr_integer_dot_product" in self.extensions:
            if self.is_gpu:
                best += (DOT,)
            else:  # Intel's runtime has the function and takes it apart: two to five times slower than the plain one
                self.paths[SPELT[DOT]] = "offered, and slower than plain on processors"
        features = {feature.name for feature in self.raw.opencl_c_features} if self._has_c3() else set()
        if features >= {"__opencl_c_atomic_order_acq_rel", "__opencl_c_atomic_scope_device"}:
            best += (ARRIVALS,)
        some = [some for count in range(len(best), -1, -1) for some in combinations(best, count)]
        return [one for one in some if ARRIVALS not in one or SUBGROUPS in one]

    def _first_that_passes(self, spellings: Sequence[Spelling]) -> None:
        wrong, failed = "", False
        for self.spelling in spellings:
            self._programs.clear()
            failed = False
            try:
                wrong = check(self)
            except EngineError as error:  # plain kernels that do not compile are an error of their own
                if not self.spelling:
                    raise
                wrong, failed = str(error), True
            for name in self.spelling:
                self.paths[SPELT[name]] = f"its self-test failed: {wrong}" if wrong else USED
            if not wrong:
                return
        if failed:  # only the given spelling was tried
            raise EngineError(
                f"kernels with {', '.join(SPELT[name] for name in self.spelling)} do not run on the device {self.name}:"
                f" {wrong}",
                hint="leave the spelling out: the device then gets the best one that runs on it",
            )
        raise EngineError(
            f"the device {self.name} does not follow IEEE 754 ({wrong}), so its output would not be exact",
            hint=f"update its driver, or use {arg('device', 'cpu')}",
        )

    @contextmanager
    def errors(self, deed: str) -> Iterator[None]:
        """Raise OpenCL's errors as errors of this package. ``deed`` is a participle for the message."""
        _check_process()
        try:
            yield
        except self.cl.Error as error:
            code = self.cl.status_code
            if error.code in (code.MEM_OBJECT_ALLOCATION_FAILURE, code.INVALID_BUFFER_SIZE, code.OUT_OF_HOST_MEMORY):
                raise OutOfMemoryError(
                    f"the device {self.name} has no memory left to be {deed} with ({error})",
                    hint=SMALLER,
                ) from None
            reset = error.code == code.OUT_OF_RESOURCES  # Intel's driver for GPUs returns it after a hang, too
            raise EngineError(
                f"the device {self.name} could not be {deed}: {error}",
                hint="a device that was lost comes back with a new process; see also the driver's log (dmesg)"
                + (f"; or memory is short: try a shorter context or {arg('kv_cache', 'int8')}" if reset else ""),
            ) from None

    def program(self, *files: str, options: Sequence[str] = (), spelling: Spelling | None = None) -> Any:
        """Return ``device.cl`` and the named files as one program. Programs are built once and cached on disk.

        ``spelling`` replaces the device's.
        """
        spelling = self.spelling if spelling is None else spelling
        key = (*files, *options, *spelling)
        if key not in self._programs:
            wanted, folder = flags(spelling, self._has_c3(), options, self.is_gpu), cache_folder_if_any()
            folder = None if folder is None else folder / "opencl"
            with self.errors("programmed"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # remarks of the compiler
                self._programs[key] = built(self.cl, self.context, self.raw, source(*files), wanted, folder)
        return self._programs[key]

    def _has_c3(self) -> bool:
        """Return True if the device compiles OpenCL C 3.0.

        ``opencl_c_version`` is the newest version that includes all older ones: 1.2 for Intel's driver for GPUs, which
        compiles 3.0.
        """
        try:
            return any(one.version >> MAJOR >= 3 for one in self.raw.opencl_c_all_versions)
        except self.cl.Error:  # drivers before OpenCL 3.0 lack the query
            return False

    def kernel(self, program: Any, name: str, *arguments: Any) -> Any:
        """Make a kernel with arguments: buffers (to which it keeps no reference), None, or NumPy scalars.

        Its attribute ``handles`` has the handles of the buffers, for profiles.
        """
        with self.errors("programmed"):
            made = self.objects.make("Kernel", program, name)
            made.set_args(*arguments)
            made.handles = frozenset(one.int_ptr for one in arguments if hasattr(one, "int_ptr"))
        return made

    @property
    def width(self) -> int:
        """The number of work-items of a work-group of lane groups."""
        return 4 * LANES if SUBGROUPS in self.spelling else LANES

    def lane_groups(self, count: int) -> int:
        """Return the number of work-items for ``count`` lane groups, rounded up to whole work-groups."""
        return -(-count * LANES // self.width) * self.width

    def enqueue(self, kernel: Any, lane_groups: int, rows: int = 1, width: int | None = None) -> None:
        """Run a kernel of ``lane_groups`` lane groups for each of ``rows``; ``width`` replaces the device's."""
        self.enqueue_plain(kernel, (self.lane_groups(lane_groups), rows), (width or self.width, 1))

    def enqueue_plain(self, kernel: Any, size: tuple[int, ...], local: tuple[int, ...] | None = None) -> None:
        """Run a kernel of ``size`` work-items, in work-groups of ``local``."""
        with self.errors("run"):
            self.launch(self.queue, kernel, size, local)

    def empty(self, nbytes: int) -> Any:
        """Allocate a buffer, not zeroed, of at least 4 bytes, since OpenCL has no buffers of 0.

        Raises OutOfMemoryError if it is larger than the device's largest buffer or the memory that is left.
        """
        return self._buffer(max(int(nbytes), 4), self.cl.mem_flags.READ_WRITE)

    def upload(self, array: npt.NDArray[Any] | None) -> Any:
        """Allocate a buffer with a copy of the array; None for None. Raises as ``empty``."""
        if array is None:
            return None
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        return self._buffer(array.nbytes, flags, np.ascontiguousarray(array))

    def _buffer(self, nbytes: int, flags: int, copied: npt.NDArray[Any] | None = None) -> Any:
        """Allocate a buffer. Sizes are checked here, since drivers that allocate at first use do not refuse them."""
        with self.errors("given memory"):
            left = self.memory - self.objects.nbytes
            if nbytes > min(self.largest_buffer, left):
                limit = (
                    f"the largest that it has is {self.largest_buffer:,}"
                    if nbytes > self.largest_buffer
                    else f"{max(left, 0):,} of its {self.memory:,} are left"
                )
                raise OutOfMemoryError(
                    f"the device {self.name} could not be given memory: a buffer of {nbytes:,} bytes is needed, and"
                    f" {limit}",
                    hint=SMALLER,
                )
            size = nbytes if copied is None else 0
            return self.objects.make("Buffer", self.context, flags, size, copied, nbytes=nbytes)

    def write(self, buffer: Any, array: npt.NDArray[Any]) -> None:
        """Copy an array into a buffer; the array may be changed after the return."""
        with self.errors("written to"):
            self.cl.enqueue_copy(self.queue, buffer, array, is_blocking=True)

    def start_write(self, buffer: Any, array: npt.NDArray[Any], at: int = 0) -> Any:
        """Enqueue a copy of an array to byte ``at`` of a buffer. Return the event, which keeps the array alive."""
        with self.errors("written to"):
            return self.cl.enqueue_copy(self.queue, buffer, array, dst_offset=at, is_blocking=False)

    def clear(self, buffer: Any, nbytes: int, at: int = 0) -> None:
        """Enqueue setting bytes of a buffer (whole words) to zero."""
        with self.errors("written to"):
            self.cl.enqueue_fill_buffer(self.queue, buffer, np.zeros(1, np.uint32), at, nbytes)

    def copy(self, source: Any, target: Any, nbytes: int, source_at: int = 0, target_at: int = 0) -> None:
        """Enqueue copying bytes between buffers, or within one."""
        with self.errors("written to"):
            self.cl.enqueue_copy(
                self.queue, target, source, byte_count=nbytes, src_offset=source_at, dst_offset=target_at
            )

    def read(self, buffer: Any, shape: tuple[int, ...], dtype: type[np.generic], offset: int = 0) -> npt.NDArray[Any]:
        """Return a buffer's content from byte ``offset`` on, after all enqueued commands."""
        (array,) = self.read_all((buffer, shape, dtype, offset))
        return array

    def read_all(self, *wanted: tuple[Any, tuple[int, ...], type[np.generic], int]) -> list[npt.NDArray[Any]]:
        """Do several ``read`` calls with one wait."""
        arrays = [np.empty(shape, dtype) for _, shape, dtype, _ in wanted]
        events = []  # the destructor of an event waits for its copy
        with self.errors("read"):
            for array, (buffer, _, _, offset) in zip(arrays, wanted, strict=True):
                if self.staging is not None and array.nbytes >= LEAST_STAGED:
                    self.staging.read(buffer, array, offset)
                else:
                    events.append(self.cl.enqueue_copy(self.queue, array, buffer, src_offset=offset, is_blocking=False))
            self.queue.finish()
        return arrays

    def start_read(self, *wanted: tuple[Any, tuple[int, ...], type[np.generic], int]) -> Callable[[], list[Any]]:
        """Enqueue several ``read`` calls. The returned function waits for them, and not for later commands."""
        arrays = [np.empty(shape, dtype) for _, shape, dtype, _ in wanted]
        events: list[Any] = []  # the destructor of an event waits for its copy
        with self.errors("read"):
            for array, (buffer, _, _, offset) in zip(arrays, wanted, strict=True):
                events.append(self.cl.enqueue_copy(self.queue, array, buffer, src_offset=offset, is_blocking=False))
            self.queue.flush()

        def wait() -> list[Any]:
            with self.errors("read"):
                for event in events:
                    event.wait()
            return arrays

        return wait

    def facts(self) -> dict[str, Any]:
        """Return the device's properties for ``describe`` and reports."""
        return {
            "device": f"opencl:{self.number}",
            "device_name": self.name,
            "driver": str(self.raw.driver_version),
            "compute_units": int(self.raw.max_compute_units),
            "spelling": ", ".join(SPELT[name] for name in self.spelling) or "plain",
        }


@cache
def device_of(name: str | None, spelling: Spelling | None = None) -> Device:
    """Return the device of a name. Each device is opened once: models share its queue, programs and memory."""
    number, _ = _chosen(name)
    return _opened(number, spelling)


@cache
def _opened(number: int, spelling: Spelling | None) -> Device:
    return Device(f"opencl:{number}", spelling)
