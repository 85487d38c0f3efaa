"""The device report of ``doctor``: its properties, a comparison of its kernels with the CPU core, and its bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.engines.native.linear import LinearPool
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.extensions import attributes
from ipex_lookahead.engines.opencl.linear import Matrix, Product
from ipex_lookahead.engines.opencl.matrix_units import use_matrix_units
from ipex_lookahead.engines.opencl.profiling import profiled
from ipex_lookahead.engines.weights import random_matrix
from ipex_lookahead.errors import EngineError
from ipex_lookahead.formats import FORMATS

SHAPES = ((48, 172), (33, 576), (256, 512))
"""Outputs and inputs of compared products: whole tiles and blocks, and ragged ones."""
ROWS = (1, 2, 4, 5, 16, 17, 40)
READ_BYTES = 256 << 20
LEAST_ITEMS, UNIT_ITEMS = 1 << 16, 2048
"""Work-items that measure bandwidth: at least, and for each compute unit, which has up to 2,048 in flight on GPUs."""
LAUNCHES = 256
TIMES = 5
EXTENSIONS = (
    "cl_khr_fp16", "cl_intel_subgroups", "cl_intel_required_subgroup_size", "cl_khr_integer_dot_product",
    "cl_khr_command_buffer", "cl_khr_command_buffer_mutable_dispatch", "cl_intel_subgroup_matrix_multiply_accumulate",
    "cl_intel_device_attribute_query", "cl_khr_subgroup_shuffle", "cl_intel_unified_shared_memory",
)  # fmt: skip
"""The extensions that a report lists."""


def details(device: Device) -> dict[str, Any]:
    """Return platform, driver, sizes (bytes, MHz) and extensions of a device."""
    use_matrix_units(device)
    raw = device.raw
    facts = {
        **device.facts(),
        "platform": str(raw.platform.name).strip(),
        "opencl": f"{str(raw.version).strip()}; {str(raw.opencl_c_version).strip()}",
        "kind": "GPU" if device.is_gpu else "not a GPU",
        "clock_mhz": int(raw.max_clock_frequency),
        "total_memory": int(raw.global_mem_size),
        "largest_buffer": int(raw.max_mem_alloc_size),
        "local_memory": int(raw.local_mem_size),
        "largest_work_group": int(raw.max_work_group_size),
        "rounded_division": _division(device),
    }
    if "cl_intel_device_attribute_query" in device.extensions:
        facts |= attributes(device.cl, raw)
    here = [name for name in EXTENSIONS if name in device.extensions]
    return facts | {
        "extensions": ", ".join(here) or "none of those that matter",
        "without": ", ".join(name for name in EXTENSIONS if name not in here) or "none of those that matter",
    }


def _division(device: Device) -> str:
    """Return whether the driver offers correctly rounded division. The self-test has passed in any case."""
    offered = device.raw.single_fp_config & device.cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    return "offered" if offered else "not offered, and the self-test passed"


def kernel_problem(device: Device, low_bit: str, threads: int | None = None) -> str:
    """Return how a format's products on the device differ from the CPU core's; empty if all bytes are equal."""
    rng, pool = np.random.default_rng(0), LinearPool(threads)
    for n_out, n_in in SHAPES:
        group = FORMATS[low_bit].group_sizes[0]
        weight = random_matrix((n_out, n_in), low_bit, group, rng)
        bias = rng.standard_normal(n_out, dtype=np.float32)
        layer, matrix = pool.layer(weight, bias), Matrix.upload(device, [weight], [bias])
        for rows in ROWS:
            x = rng.standard_normal((rows, n_in), dtype=np.float32)
            expected = np.empty((rows, n_out), np.float32)
            layer.into(x, expected)
            got = Product(matrix, x).result()
            if got.tobytes() != expected.tobytes():
                wrong = int((got.view(np.uint32) != expected.view(np.uint32)).sum())
                return (
                    f"{wrong} of {got.size} values differ from the CPU's for {rows} rows of a {n_out} x {n_in} matrix"
                )
    return ""


def kernel_times(device: Device, low_bit: str, shape: tuple[int, int], rows: Sequence[int]) -> dict[str, float]:
    """Return the shortest time of several products with a matrix of that shape, in milliseconds, by rows."""
    weight = random_matrix(shape, low_bit, FORMATS[low_bit].group_sizes[0], np.random.default_rng(0))
    matrix, found = Matrix.upload(device, [weight], [None]), {}
    for count in rows:
        product = Product(matrix, np.ones((count, shape[1]), np.float32))
        found[str(count)] = round(1e3 * _best(device, product.enqueue), 4)
    return found


def bandwidth(device: Device) -> dict[str, float]:
    """Return GB/s of kernels that read and copy the device's memory, of uploads and of downloads.

    Kernels are timed by the device's clock. A copy counts the bytes that it reads and those that it writes.
    ``from_the_device_unpinned`` is present on devices with pinned memory for downloads.
    """
    memory = int(device.raw.global_mem_size) // 8
    nbytes = min(READ_BYTES, int(device.raw.max_mem_alloc_size), memory) // 4096 * 4096
    if nbytes == 0:
        raise EngineError(f"the device {device.name} has no memory to measure", hint="see its driver's log")
    host = np.random.default_rng(0).integers(0, 2**32, nbytes // 4, np.uint32)
    buffer, target = device.upload(host), device.empty(nbytes)
    items = min(max(LEAST_ITEMS, UNIT_ITEMS * int(device.raw.max_compute_units)), nbytes // 16)
    out = device.empty(4 * items)
    program, count = device.program("bandwidth"), np.int32(nbytes // 16)
    kernels = [
        device.kernel(program, "read_all", buffer, count, out),
        device.kernel(program, "copy_all", buffer, count, target),
    ]
    with profiled(device) as profile:
        for _ in range(1 + TIMES):
            for kernel in kernels:
                device.enqueue_plain(kernel, (items,))
    least = {one.kernel: one.least for one in profile.kernels}
    joined = int(np.bitwise_xor.reduce(device.read(out, (items,), np.uint32)))
    copied = device.read(target, host.shape, np.uint32)
    if joined != int(np.bitwise_xor.reduce(host)) or copied.tobytes() != host.tobytes():
        raise EngineError(f"the device {device.name} read other bytes than were written", hint="see its driver's log")
    seconds = {
        "device_reads": least["read_all"],
        "device_copies": least["copy_all"] / 2,
        "to_the_device": _best(device, lambda: device.write(buffer, host)),
        "from_the_device": _best(device, lambda: device.read(buffer, host.shape, np.uint32)),
    }
    if device.staging is not None:
        seconds["from_the_device_unpinned"] = _best(
            device, lambda: device.cl.enqueue_copy(device.queue, copied, buffer, is_blocking=True)
        )
    return {name: round(nbytes / one / 1e9, 2) for name, one in seconds.items()}


def launch_overhead(device: Device) -> dict[str, float]:
    """Return microseconds of a kernel without work.

    ``enqueue_us``: of the host, for one of many; ``launched_us``: the same until all have finished; ``alone_us``: one
    alone until it has finished.
    """
    buffer = device.empty(16)
    kernel = device.kernel(device.program("bandwidth"), "copy_all", buffer, np.int32(0), buffer)
    size, local = (device.width,), (device.width,)

    def many() -> None:
        for _ in range(LAUNCHES):
            device.enqueue_plain(kernel, size, local)

    enqueued = []
    for _ in range(1 + TIMES):
        device.queue.finish()
        start = perf_counter()
        many()
        enqueued.append(perf_counter() - start)
    device.queue.finish()
    alone = min(_best(device, lambda: device.enqueue_plain(kernel, size, local)) for _ in range(TIMES))
    return {
        "enqueue_us": round(1e6 * min(enqueued[1:]) / LAUNCHES, 2),
        "launched_us": round(1e6 * _best(device, many) / LAUNCHES, 2),
        "alone_us": round(1e6 * alone, 2),
    }


def _best(device: Device, deed: Callable[[], Any]) -> float:
    """Return the shortest time of several calls, in seconds, each until the queue is empty; the first is a warm-up."""
    found = []
    for _ in range(1 + TIMES):
        device.queue.finish()
        start = perf_counter()
        deed()
        device.queue.finish()
        found.append(perf_counter() - start)
    return min(found[1:])
