"""Low-bit formats: what the bits of a weight mean. A new format is a new file here and a line in ``low_bits.py``."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError, arg
from ipex_lookahead.formats.base import GROUP, LowBitFormat, PackedWeight
from ipex_lookahead.low_bits import LOW_BITS

__all__ = [
    "FLOATS",
    "FORMATS",
    "GROUP",
    "LowBitFormat",
    "PackedWeight",
    "dequantize",
    "get_format",
    "in_floats",
    "quantize",
]

FORMATS: dict[str, LowBitFormat] = {name: import_module(f"{__name__}.{name}").FORMAT for name in LOW_BITS}

FLOATS = tuple(name for name, low_bit in FORMATS.items() if low_bit.streams[0].inputs == 1)
"""The formats whose codes are the values themselves."""


def get_format(name: str) -> LowBitFormat:
    """The format of that name. Raises LowBitFormatError, listing the known names."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise LowBitFormatError(
            f"unknown low-bit format {name!r}; the known formats are {', '.join(FORMATS)}",
            hint=f"for example {arg('load_in_low_bit', 'sym_int4')}",
        ) from None


def quantize(
    weight: PackedWeight,
    name: str,
    group_size: int = 32,
    threads: int | None = None,
    importance: npt.NDArray[np.float32] | None = None,
) -> PackedWeight:
    """A weight in format ``name``; the same object where it is in that format and of that group size already.

    Args:
        weight: a float weight; a matrix [n_out, n_in] for the integer formats.
        name: a key of ``FORMATS``.
        group_size: inputs that share a scale, 32 or 64; not used by formats that leave no choice.
        threads: to compute with, None for one on each CPU that this process may use.
        importance: float32 [n_in], what the squared error of each input's weights counts (``LowBitFormat.quantize``).

    Raises:
        LowBitFormatError: an unknown format, a weight that is quantised otherwise already, one that is no matrix, or
            one with values that the format cannot hold.
    """
    target = get_format(name)
    if weight.format == name and weight.format not in FLOATS and weight.group_size in (0, group_size):
        return weight
    return target.quantize(weight, group_size, threads, importance)


def in_floats(weight: PackedWeight) -> PackedWeight:
    """The weight with its values as codes: itself where it is in a float format, else decoded to float32, exactly."""
    return weight if weight.format in FLOATS else PackedWeight("fp32", weight.shape, dequantize(weight))


def dequantize(weight: PackedWeight) -> npt.NDArray[np.float32]:
    """The values that a weight's codes stand for, float32 [*shape], whatever its format and the order of its inputs."""
    values = get_format(weight.format).dequantize(weight)
    if weight.order is None:
        return values
    in_order = np.empty_like(values)
    in_order[:, weight.order] = values
    return in_order
