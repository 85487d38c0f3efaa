"""OpenCL functions that pyopencl does not wrap, called in the loader that pyopencl uses."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from ipex_lookahead.errors import EngineError

INTEL = {
    "ip_version": 0x4250, "device_id": 0x4251, "slices": 0x4252, "subslices_per_slice": 0x4253,
    "eus_per_subslice": 0x4254, "threads_per_eu": 0x4255, "features": 0x4256,
}  # fmt: skip
"""Queries of cl_intel_device_attribute_query; each returns up to 4 bytes."""

SUBGROUP_SIZES = 0x4108


@cache
def loader(cl: Any) -> Any:
    """Return the loader's library. Raises EngineError if its functions cannot be found."""
    try:
        # A library's handle finds what the libraries that it needs have as well; on Windows it does not.
        found: Any = ctypes.CDLL("OpenCL") if sys.platform == "win32" else ctypes.CDLL(cl._cl.__file__)
        for name in ("clGetDeviceInfo", "clGetExtensionFunctionAddressForPlatform"):
            getattr(found, name)
    except (OSError, AttributeError) as error:
        raise EngineError(f"OpenCL's loader cannot be called: {error}", hint="reinstall pyopencl") from None
    found.clGetExtensionFunctionAddressForPlatform.restype = ctypes.c_void_p
    return found


def attributes(cl: Any, raw: Any) -> dict[str, int]:
    """Return the attributes that cl_intel_device_attribute_query reports for a device."""
    facts = {}
    for name, number in INTEL.items():
        value = ctypes.c_uint32()
        size = ctypes.c_size_t(ctypes.sizeof(value))
        device, wanted = ctypes.c_void_p(raw.int_ptr), ctypes.c_uint32(number)
        if loader(cl).clGetDeviceInfo(device, wanted, size, ctypes.byref(value), None) == 0:
            facts[name] = int(value.value)
    return facts


def subgroup_sizes(cl: Any, raw: Any) -> list[int]:
    """Return the sizes that cl_intel_required_subgroup_size offers, ascending; empty if the device reports none."""
    sizes, given = (ctypes.c_size_t * 16)(), ctypes.c_size_t()
    device, number = ctypes.c_void_p(raw.int_ptr), ctypes.c_uint32(SUBGROUP_SIZES)
    room = ctypes.c_size_t(ctypes.sizeof(sizes))
    if loader(cl).clGetDeviceInfo(device, number, room, sizes, ctypes.byref(given)) != 0:
        return []
    return sorted(int(size) for size in sizes[: given.value // ctypes.sizeof(ctypes.c_size_t)])
