"""Torch devices: their checks, properties, memory, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ipex_lookahead.errors import EngineError, InputError, LookaheadError, OutOfMemoryError, arg, first_line

DEVICES = ("cpu", "xpu", "cuda")

_INSTALL = {
    "xpu": "for Intel GPUs: pip install torch --index-url https://download.pytorch.org/whl/xpu, and Intel's GPU driver",
    "cuda": "for NVIDIA GPUs: a build of torch with CUDA (https://pytorch.org/get-started) and NVIDIA's driver",
}


def check_device(device: Any) -> torch.device:
    """Return ``device`` as an existing torch device.

    Raises:
        InputError: not "cpu", "xpu", "cuda", or one of the latter with a number such as "xpu:1".
        EngineError: there is no such device, or torch was built without it.
    """
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        wanted = None
    if wanted is None or wanted.type not in DEVICES:
        raise InputError(
            argument="device",
            got=device,
            allowed=f"one of {', '.join(DEVICES)}, or such as 'xpu:0'",
            hint=f"{arg('device', 'opencl')} and 'opencl:1' are for OpenCL's devices, without PyTorch",
        )
    if wanted.type == "cpu":
        return wanted
    backend: Any = getattr(torch, wanted.type, None)
    count = 0
    if backend is not None and hasattr(backend, "device_count"):
        try:
            count = int(backend.device_count()) if backend.is_available() else 0
        except (RuntimeError, AssertionError):
            count = 0
    if not count:
        raise EngineError(
            f"torch {torch.__version__} finds no {wanted.type} device on this machine", hint=_INSTALL[wanted.type]
        )
    if wanted.index is not None and wanted.index >= count:
        raise EngineError(f"there is no {wanted}: torch finds {count} {wanted.type} device(s), numbered from 0")
    return wanted


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return name and memory (bytes) of a device, for reports.

    ``isa``, the instruction set or the device's name, is part of the key of a calibration.
    """
    if device.type == "cpu":
        capability = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "default")()
        return {"device": "cpu", "isa": f"torch {capability}".lower()}
    backend: Any = getattr(torch, device.type)
    name = str(backend.get_device_name(device))
    facts: dict[str, Any] = {"device": str(device), "isa": name, "device_name": name}
    memory = {
        "allocated": getattr(backend, "memory_allocated", None),
        "reserved": getattr(backend, "memory_reserved", None),
        "peak": getattr(backend, "max_memory_allocated", None),
    }
    found = {key: int(read(device)) for key, read in memory.items() if read is not None}
    total = getattr(backend.get_device_properties(device), "total_memory", None)
    return {**facts, "device_memory": {**found, **({} if total is None else {"total": int(total)})}}


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads inside the context; None changes nothing.

    Torch has one number for the whole process, so it is restored.
    """
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def forward_errors(device: torch.device) -> Iterator[None]:
    """Raise exceptions of a model's own code as EngineError, or OutOfMemoryError with a hint."""
    kind: Any = getattr(torch, "OutOfMemoryError", getattr(torch.cuda, "OutOfMemoryError", MemoryError))
    try:
        yield
    except LookaheadError:
        raise
    except kind as error:
        raise OutOfMemoryError(
            f"{device} is out of memory: {first_line(error)}", hint="a shorter prompt, or a format of fewer bits"
        ) from None
    except (RuntimeError, IndexError) as error:
        raise EngineError(
            f"the model's own forward failed: {first_line(error)}",
            hint="the sizes in the checkpoint's config.json may contradict each other",
        ) from error
