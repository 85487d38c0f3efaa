"""Blocks whose parts have a signed step of one scale: what Q3_K, Q6_K and IQ4_XS have in common."""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import Parts
from ipex_lookahead.formats.search import Floats, Nearest, best_scale, grouped, half, inverse_of


def quantize_signed_steps(
    values: Floats,
    inputs: Floats,
    *,
    nearest: Nearest,
    extreme: float,
    width: float,
    tries: int,
    size: int,
    least_step: int,
) -> tuple[Parts, Floats]:
    """Blocks [..., inputs] with a step, ``least_step`` ... -``least_step`` - 1, for each ``size`` inputs.

    Each part's scale is searched for (``best_scale``). The largest becomes ``least_step``, and codes are those that are
    nearest with what was rounded. Returns the parts without codes, and the whole numbers that codes are to stand for.
    """
    parts = grouped(values, size)
    scale = best_scale(parts, grouped(inputs * values * values, size), nearest, extreme, width, tries)
    first = np.abs(scale).argmax(axis=-1, keepdims=True)
    bits, of_block = half(np.take_along_axis(scale, first, axis=-1)[..., 0] / np.float32(least_step))
    steps = np.clip(np.rint(scale * inverse_of(of_block)[..., None]), least_step, -least_step - 1)
    stored = of_block[..., None] * steps
    whole = nearest(parts * inverse_of(stored)[..., None]).reshape(values.shape)
    return Parts(np.empty(0, np.uint8), bits, steps=steps.astype(np.int16)), whole
