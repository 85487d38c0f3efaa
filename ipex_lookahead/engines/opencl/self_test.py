"""Whether a device computes what kernels rest on: correctly rounded, with subnormals, and nothing joined."""

from __future__ import annotations

from typing import Any

import numpy as np

COUNT = 256


def check(device: Any) -> str:
    """The first operation of ``kernels/self_test.cl`` whose bits are not what they must be; empty where all are.

    Oracles are numpy's in float64, in which products of float32 are exact, as are their sums with what lies near; and
    quotients and roots are rounded twice without harm (Figueroa, 1995).
    """
    rng = np.random.default_rng(0)
    a, b = ((1 + rng.random(COUNT)).astype(np.float32) for _ in range(2))
    c = np.where(np.arange(COUNT) % 2, -(a * b), 1 + 3 * rng.random(COUNT)).astype(np.float32)
    codes = rng.integers(0, 2**32, COUNT, np.uint32)
    halves = rng.integers(0, 0x7C00, COUNT, np.uint16)  # finite ones, subnormals among them
    halves[:4] = (1, 0x3FF, 0x400, 0x7BFF)
    out, dots = device.empty(8 * COUNT * 4), device.empty(4 * COUNT * 4)
    buffers = [device.upload(array) for array in (a, b, c, codes, halves)]
    kernel = device.kernel(device.program("self_test"), "self_test", *buffers, out, dots)
    device.enqueue(kernel, COUNT // 16)
    got, whole = device.read(out, (8, COUNT), np.float32), device.read(dots, (4, COUNT), np.int32)

    wide = [array.astype(np.float64) for array in (a, b, c)]
    lanes = c.reshape(-1, 16)
    tree = lanes
    for half in (8, 4, 2, 1):
        tree = tree[:, :half] + tree[:, half : 2 * half]
    signed = codes[::-1].copy().view(np.int8).reshape(-1, 4).astype(np.int32)
    dot = (codes.view(np.uint8).reshape(-1, 4) * signed).sum(1, dtype=np.int32) + 7
    small = (a * np.float32(2.0**-100), b * np.float32(2.0**-46))
    expected = {
        "fma": (got[0], (wide[0] * wide[1] + wide[2]).astype(np.float32)),
        "a product and a sum apart": (got[1], a * b + c),
        "division": (got[2], (wide[0] / wide[1]).astype(np.float32)),
        "square root": (got[3], np.sqrt(wide[0]).astype(np.float32)),
        "subnormal products": (got[4], (small[0].astype(np.float64) * small[1]).astype(np.float32)),
        "reading binary16": (got[5], halves.view(np.float16).astype(np.float32)),
        "sums over lanes": (got[6], np.repeat(tree[:, 0], 16)),
        "maxima over lanes": (got[7], np.repeat(lanes.max(1), 16)),
        "integer dot products": (whole[0], dot),
        "rounding to whole numbers": (whole[1], np.rint(c * np.float32(4)).astype(np.int32)),
        "integer sums over lanes": (whole[2], np.repeat(dot.reshape(-1, 16).sum(1, dtype=np.int32), 16)),
        "writing binary16": (
            whole[3].view(np.uint16)[:COUNT],
            (c * np.float32(2.0**-15)).astype(np.float16).view(np.uint16),
        ),
    }
    return next((name for name, (one, other) in expected.items() if one.tobytes() != other.tobytes()), "")
