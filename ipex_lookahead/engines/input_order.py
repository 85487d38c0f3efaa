"""Weights whose inputs have an order of their own (GPTQ's act order): which of them share one, what becomes of others.

A place in a block where rows are made for matrices has one order; the first of the matrices that read them decides.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats import FLOATS, as_floats
from ipex_lookahead.formats.base import PackedWeight

log = logging.getLogger("ipex_lookahead")

Order = npt.NDArray[np.int32]

SHARED = {"q": "q", "k": "q", "v": "q", "o": "o", "gate": "gate", "up": "gate", "down": "down"}
"""A matrix -> the first of those that are given the same inputs: all have one order of these. Experts have none."""


def reordered(weight: PackedWeight, order: Order | None) -> PackedWeight:
    """The weight for inputs in that order, exactly: one that has another comes out in float32."""
    own = weight.order
    if own is order or (own is not None and order is not None and np.array_equal(own, order)):
        return replace(weight, order=None)
    weight = as_floats(weight)
    return weight if order is None else replace(weight, codes=np.ascontiguousarray(weight.codes[:, order]))


def with_order(weight: PackedWeight, order: Order | None) -> PackedWeight:
    """A weight for inputs in that order as it is saved: floats in the model's own."""
    if order is None or weight.format not in FLOATS:
        return replace(weight, order=order)
    codes = np.empty_like(weight.codes)
    codes[:, order] = weight.codes
    return replace(weight, codes=codes)


def warn_of_decoded(decoded: Counter[str]) -> None:
    """Say how many matrices of each format became floats."""
    for low, count in decoded.items():
        log.warning(
            "%d matrices in %s are kept in float32: their inputs have another order than those of what else is "
            "given the same", count, low,
        )  # fmt: skip
