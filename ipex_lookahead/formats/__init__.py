"""Low-bit formats: the meaning of the bits of a weight, independent of devices and models.

Every format is a row of ``table.py`` and is listed, in the order of ``low_bits.py``, in ``FORMATS``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError, arg
from ipex_lookahead.formats.base import GROUP, LowBitFormat, PackedWeight
from ipex_lookahead.formats.table import BLOCK_FORMATS, FLOAT_FORMATS, GROUP_FORMATS
from ipex_lookahead.low_bits import LOW_BITS

__all__ = [
    "FLOATS",
    "FORMATS",
    "GROUP",
    "LowBitFormat",
    "PackedWeight",
    "dequantize",
    "get_format",
    "as_floats",
    "quantize",
]

_ROWS: dict[str, LowBitFormat] = {row.name: row for row in (*FLOAT_FORMATS, *GROUP_FORMATS)}
_ROWS.update(BLOCK_FORMATS)
FORMATS: dict[str, LowBitFormat] = {name: _ROWS[name] for name in LOW_BITS}

FLOATS = tuple(name for name, low_bit in FORMATS.items() if low_bit.streams[0].inputs == 1)
"""The unquantized formats: their codes are the values."""


def get_format(name: str) -> LowBitFormat:
    """Return the format with this name; raise LowBitFormatError that lists the known names if there is none."""
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
    """Convert a weight to format ``name``; a weight that already has this format and group size is returned as is.

    Args:
        weight: a float weight; a matrix [n_out, n_in] for the integer formats.
        name: a key of ``FORMATS``.
        group_size: inputs that share a scale, 32 or 64; ignored by formats with a fixed block size.
        threads: number of threads; None: one per CPU available to this process.
        importance: float32 [n_in], weight of each input's squared error (see ``LowBitFormat.quantize``).

    Raises:
        LowBitFormatError: if the format is unknown, or the weight is quantized in another format, is not a matrix, or
            has values that the format cannot represent.
    """
    target = get_format(name)
    if weight.format == name and weight.format not in FLOATS and weight.group_size in (0, group_size):
        return weight
    return target.quantize(weight, group_size, threads, importance)


def as_floats(weight: PackedWeight) -> PackedWeight:
    """Return a weight in a float format as is; decode any other weight exactly to float32."""
    return weight if weight.format in FLOATS else PackedWeight("fp32", weight.shape, dequantize(weight))


def dequantize(weight: PackedWeight) -> npt.NDArray[np.float32]:
    """Return a weight's values, float32 [*shape], with inputs in the layer's order."""
    values = get_format(weight.format).dequantize(weight)
    if weight.order is None:
        return values
    in_order = np.empty_like(values)
    in_order[:, weight.order] = values
    return in_order
