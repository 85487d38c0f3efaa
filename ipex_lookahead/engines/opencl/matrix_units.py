"""Matrix units (Intel's XMX) for many rows: used if the device has them and they give the plain kernel's bytes.

They add 32 products of whole numbers, which is exact in any order. The self-test checks the layout of their inputs.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.engines.opencl.device import NOT_OFFERED, USED, Device
from ipex_lookahead.engines.opencl.extensions import subgroup_sizes
from ipex_lookahead.engines.opencl.linear import Matrix, Product
from ipex_lookahead.engines.opencl.programs import Units
from ipex_lookahead.engines.weights import random_matrix
from ipex_lookahead.errors import EngineError

PATH, EXTENSION = "matrix units", "cl_intel_subgroup_matrix_multiply_accumulate"
WIDTHS = (8, 16)
TRIED = ("sym_int4", "asym_int4", "q6_k", "q2_k")
"""Formats with one scale per block, with minimums, with a scale per half block, and with both."""


def use_matrix_units(device: Device) -> None:
    """Decide once per device whether to use matrix units; ``device.paths`` records the decision."""
    with device.lock:  # another thread, which loads another model, must not find it half decided
        if PATH not in device.paths:
            device.units, device.paths[PATH] = _decided(device)


def _decided(device: Device) -> tuple[Units, str]:
    if EXTENSION not in device.extensions:
        return Units(), NOT_OFFERED
    width = min(subgroup_sizes(device.cl, device.raw), default=0)
    if width not in WIDTHS:
        return Units(), f"offered for subgroups of {width}, and kernels have 8 and 16"
    wrong = difference(device, Units(width))
    return (Units(), f"its self-test failed: {wrong}") if wrong else (Units(width), USED)


def difference(device: Device, units: Units) -> str:
    """Return the first product in which matrix units differ from the plain kernel; empty if all bytes are equal."""
    rng, before = np.random.default_rng(0), device.units
    try:
        for low_bit in TRIED:
            matrix = Matrix.upload(device, [random_matrix((40, 288), low_bit, 32, rng)], [None])
            x = rng.standard_normal((23, 288), dtype=np.float32)
            made = []
            for device.units in (Units(), units):
                made.append(Product(matrix, x).result().tobytes())
            if made[0] != made[1]:
                return f"products with {low_bit}"
    except EngineError as error:
        return str(error)
    finally:
        device.units = before
    return ""
