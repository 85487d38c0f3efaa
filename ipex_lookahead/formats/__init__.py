"""Low-bit formats: what the bits of a weight mean. A new format is a new file and a line in ``FORMATS``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats import asym_int4, bf16, fp16, fp32, sym_int4, sym_int8
from ipex_lookahead.formats.base import GROUP, LowBitFormat, PackedWeight

__all__ = ["FORMATS", "GROUP", "LowBitFormat", "PackedWeight", "dequantize", "get_format", "quantize"]

FORMATS: dict[str, LowBitFormat] = {
    module.FORMAT.name: module.FORMAT for module in (sym_int4, asym_int4, sym_int8, fp16, bf16, fp32)
}


def get_format(name: str) -> LowBitFormat:
    """The format of that name. Raises LowBitFormatError, listing the known names."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise LowBitFormatError(
            f"unknown low-bit format {name!r}; the known formats are {', '.join(FORMATS)}",
            hint=f"pass one of {', '.join(FORMATS)} as load_in_low_bit",
        ) from None


def quantize(weight: PackedWeight, name: str, group_size: int = 32, threads: int | None = None) -> PackedWeight:
    """A weight in format ``name``; the same object where it is in that format and of that group size already.

    Args:
        weight: a float weight; a matrix [n_out, n_in] for the integer formats.
        name: a key of ``FORMATS``.
        group_size: inputs that share a scale, 32 or 64; not used by float formats.
        threads: threads of the compiled quantiser, None for one on each CPU that this process may use.

    Raises:
        LowBitFormatError: an unknown format, a weight that is quantised otherwise already, one that is no matrix, or
            one with values that the format cannot hold.
    """
    target = get_format(name)
    if weight.format == name and weight.group_size == group_size:
        return weight
    return target.quantize(weight, group_size, threads)


def dequantize(weight: PackedWeight) -> npt.NDArray[np.float32]:
    """The values that a weight's codes stand for, float32 [*shape], whatever its format."""
    return get_format(weight.format).dequantize(weight)
