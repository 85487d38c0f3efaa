"""The test that a device computes as kernels need: correctly rounded, with subnormals, without contraction."""

from __future__ import annotations

from typing import Any

import numpy as np

COUNT = 256
PER_EXPONENT = 64
"""Number of values of each float32 exponent that division and square root are tested with."""
ARRIVALS, ROUNDS = 512, 4
"""Number of work-groups, the last of which adds the results of all, and number of repetitions."""


def self_test_inputs() -> tuple[Any, Any, Any, Any, Any]:
    """Return the inputs of ``kernels/self_test.cl``, [COUNT] each: three of float32, words of four codes, binary16."""
    rng = np.random.default_rng(0)
    a, b = ((1 + rng.random(COUNT)).astype(np.float32) for _ in range(2))
    c = np.where(np.arange(COUNT) % 2, -(a * b), 1 + 3 * rng.random(COUNT)).astype(np.float32)
    codes = rng.integers(0, 2**32, COUNT, np.uint32)
    halves = rng.integers(0, 0x7C00, COUNT, np.uint16)  # subnormals among them
    halves[:4] = (1, 0x3FF, 0x400, 0x7BFF)
    return a, b, c, codes, halves


def check(device: Any) -> str:
    """Return the first operation of ``kernels/self_test.cl`` with wrong bits; empty if all are right.

    The oracle is NumPy in float64. There, products of float32 and their sums with values of similar size are exact, and
    rounding quotients and roots twice gives the same bits (Figueroa, 1995).
    """
    a, b, c, codes, halves = self_test_inputs()
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
    wrong = next((name for name, (one, other) in expected.items() if one.tobytes() != other.tobytes()), "")
    return wrong or _check_range(device) or _check_arrivals(device)


def range_inputs() -> tuple[Any, Any]:
    """Return dividends and divisors, float32 [n]: every exponent, random digits, subnormals, zeros and infinities.

    Quotients range from zero over subnormals to infinity. None is NaN, since the bits of a NaN are not defined.
    """
    rng = np.random.default_rng(2)
    tops = np.repeat(np.arange(256), PER_EXPONENT)
    others = rng.integers(0, 255, len(tops))
    others[::2] = np.clip(tops[::2] - rng.integers(-24, 25, len(others[::2])), 0, 254)  # quotients near 1,
    others[1::4] = np.clip(tops[1::4] - 127 + 126 + rng.integers(0, 25, len(others[1::4])), 0, 254)  # and tiny ones
    digits = rng.integers(0, 1 << 23, (2, len(tops)))
    digits[:, ::7] >>= rng.integers(0, 23, (2, len(tops)))[:, ::7]  # subnormals of few digits
    digits[0, tops == 255] = 0  # infinities, not NaN
    signs = rng.integers(0, 2, (2, len(tops)))
    x, y = (
        (sign << 31 | exponent << 23 | digit).astype(np.uint32).view(np.float32)
        for sign, exponent, digit in zip(signs, (tops, others), digits, strict=True)
    )
    y[y == 0] = np.float32(1e-45)
    x[:2] = (0.0, -0.0)
    return x, y


def _check_range(device: Any) -> str:
    """Test division and square roots over all exponents, since drivers have several code paths for them."""
    x, y = range_inputs()
    buffers = [device.upload(x), device.upload(y), device.empty(8 * len(x))]
    device.enqueue_plain(device.kernel(device.program("self_test"), "range_test", *buffers), (len(x),))
    quotients, roots = device.read(buffers[2], (2, len(x)), np.float32)
    with np.errstate(over="ignore", under="ignore"):
        expected = (x.astype(np.float64) / y).astype(np.float32)
    for name, got, right in (
        ("division", quotients, expected),
        ("square root", roots, np.sqrt(np.abs(x).astype(np.float64)).astype(np.float32)),
    ):
        if (wrong := np.flatnonzero(got.view(np.uint32) != right.view(np.uint32))).size:
            at = wrong[0]
            of = f"{x[at]:.9g} / {y[at]:.9g}" if name == "division" else f"{abs(x[at]):.9g}"
            return f"{name} of {of}, and {len(wrong)} values of {len(x)}"
    return ""


def _check_arrivals(device: Any) -> str:
    """Test that the last work-group reads the writes of all others; empty where the spelling has no arrivals."""
    if "HAS_ARRIVALS" not in device.spelling:
        return ""
    codes = np.random.default_rng(1).integers(0, 2**32, 16 * ARRIVALS, np.uint32)
    zero = np.zeros(1, np.uint32)
    buffers = [device.upload(array) for array in (codes, np.zeros_like(codes), zero, zero)]
    kernel = device.kernel(device.program("self_test"), "arrivals", *buffers)
    for _ in range(ROUNDS):
        device.enqueue_plain(kernel, (len(codes),), (16,))
    total = (ROUNDS * 3 * int(codes.sum(dtype=np.uint64))) % 2**32
    return "" if int(device.read(buffers[3], (1,), np.uint32)[0]) == total else "counting arrivals of work-groups"
