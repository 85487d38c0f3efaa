"""Blocks of 32 codes that count a table of numbers, with one scale: w = scale * table[code], rounded once.

They are no types of GGUF's. Tables of whole numbers within int8 are taken as such by the kernels, others as floats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipex_lookahead.formats.base import GROUP
from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.search import TableSearch

NIBBLES, CRUMBS, BYTES = Plane("nibbles", 4, 16), Plane("crumbs", 2, 8), Plane("bytes", 8, 32)


def table_format(
    name: str,
    table: Sequence[float],
    extreme: float,
    *planes: Plane,
    width: float = 0.0,
    tries: int = 0,
    zero: int = 0,
) -> BlockFormat:
    """The format whose codes count ``table``; see ``TableSearch.of`` for the search for its scale.

    Args:
        name: the format's.
        table: what codes stand for; with ``zero`` whole numbers from ``-zero`` on.
        extreme: the number that the value of largest magnitude is tried at,
        planes: where the codes' bits are, one behind the other after the scale.
        width: and others so far from each other,
        tries: so many on either side of it.
        zero: what is taken from a code instead of looking it up.
    """
    fields = [(plane.field, "u1", GROUP * plane.bits // 8) for plane in planes]
    return BlockFormat(
        name,
        inputs=GROUP,
        record=np.dtype([("scale", "<u2"), *fields]),
        planes=planes,
        quantizer=TableSearch.of(table, GROUP, extreme, width, tries),
        zero=zero,
        table=None if zero else tuple(table),
    )


def minifloats(exponent: int, mantissa: int, bias: int | None = None) -> tuple[float, ...]:
    """What the codes of a float with a sign and so many bits of exponent and mantissa stand for.

    The exponent's bias is IEEE 754's if not given.

    Subnormals as in IEEE 754, but no code is an infinity or NaN: those with the largest exponent are numbers too.
    """
    bias = 2 ** (exponent - 1) - 1 if bias is None else bias
    found = []
    for code in range(1 << (1 + exponent + mantissa)):
        power, part = divmod(code & ((1 << (exponent + mantissa)) - 1), 1 << mantissa)
        number = (part + (power > 0) * 2**mantissa) * 2.0 ** (max(power, 1) - bias - mantissa)
        found.append(-number if code >> (exponent + mantissa) else number)
    return tuple(found)
