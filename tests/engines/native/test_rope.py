"""The core's own sines, cosines and logarithms of rotary positions, against mpmath with 300 bits and more."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Rope
from ipex_lookahead.engines.native.decoder import rope_tables

native = pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")


def nearest(value: mpmath.mpf) -> np.float32:
    """The float32 nearest to a number of mpmath: of the double's neighbourhood, which is far finer."""
    near = np.float32(float(value))
    around = (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))
    return min(around, key=lambda one: abs(mpmath.mpf(float(one)) - value))


def angles(count: int, rng: np.random.Generator) -> np.ndarray:
    """Floats of every exponent and sign, those of a model's positions, and the floats next to quarter turns."""
    bits = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    positions = rng.integers(0, 1 << 20, count).astype(np.float32) * (1e4 ** -rng.random(count)).astype(np.float32)
    with mpmath.workprec(300):
        quarters = [float(mpmath.pi / 2 * int(n)) for n in (*range(1, 100), *(10 ** rng.uniform(2, 18, 300)))]
    every = np.concatenate([bits, positions, np.array(quarters, np.float32), np.float32([0, 1e-45, 0.785, 0.7853982])])
    return every[np.isfinite(every)]


def tables_of(some: np.ndarray, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of these angles: those of position 1, whose angle is the frequency."""
    cos, sin, _ = rope_tables(Rope(some, factor), 2)
    assert np.array_equal(cos[0], np.full(len(some), factor, np.float32))
    assert not sin[0].any()
    return cos[1], sin[1]


def test_sines_and_cosines_are_the_nearest_floats_of_any_angle():
    """Not one of so many is off; the doubles behind them are within 2^-51, which a float32 shows once in 2^26."""
    some = angles(4000, np.random.default_rng(5))
    cos, sin = tables_of(some)
    with mpmath.workprec(400):
        exact = [(mpmath.cos(float(x)), mpmath.sin(float(x))) for x in some]
        wanted = np.array([[nearest(c), nearest(s)] for c, s in exact], np.float32)
    assert np.array_equal(cos, wanted[:, 0])
    assert np.array_equal(sin, wanted[:, 1])


def test_an_angle_is_rounded_once_and_the_factor_multiplies_what_is_rounded():
    frequencies, factor = rope({"head_dim": 64, "rope_theta": 500000.0}).frequencies, np.float32(1.37)
    cos, sin, query = rope_tables(Rope(frequencies, float(factor)), 300)
    p = np.arange(300, dtype=np.float32)[:, None]
    angle = (p * frequencies).astype(np.float64)
    assert np.array_equal(cos, np.cos(angle).astype(np.float32) * factor)
    assert np.array_equal(sin, np.sin(angle).astype(np.float32) * factor)
    assert (query == 1).all()


def test_angles_that_are_no_numbers_stay_so():
    cos, sin, _ = rope_tables(Rope(np.float32([3e38, 1.0]), 1.0), 4)  # position 2 is beyond float32
    assert np.isnan(cos[2:, 0]).all()
    assert np.isnan(sin[2:, 0]).all()
    assert np.isfinite(cos[:, 1]).all()


@pytest.mark.parametrize(("beta", "original"), [(0.1, 1), (0.1, 8192), (0.37, 3)])
def test_what_queries_are_multiplied_by_is_the_nearest_float(beta, original):
    positions = 3000 if original < 8192 else 4 * original
    *_, query = rope_tables(Rope(np.float32([1.0]), 1.0, beta, original), positions)
    with mpmath.workprec(300):
        for p in range(0, positions, 1 if original < 8192 else 997):
            assert query[p] == nearest(1 + float(np.float32(beta)) * mpmath.log(1 + p // original)), p


def test_a_rope_that_would_divide_by_zero_is_refused():
    with pytest.raises(ValueError, match="query_original must be at least 1"):
        rope_tables(Rope(np.float32([1.0]), 1.0, 0.5, 0), 4)
    with pytest.raises(ValueError, match="positions must be from 1"):
        rope_tables(Rope(np.float32([math.pi]), 1.0), 0)
