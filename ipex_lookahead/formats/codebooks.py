"""Blocks of 32 codes that count a table of numbers, with one scale: w = scale * table[code], rounded once.

They are no types of GGUF's. Tables of whole numbers within int8 are taken as such by the kernels, others as floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ipex_lookahead.formats.base import GROUP
from ipex_lookahead.formats.blocks import Plane
from ipex_lookahead.formats.search import Floats, Numbers, Parts, ScaleSearch, around

SCALE = ("scale", "<u2")
NIBBLES, CRUMBS = ("nibbles", "u1", 16), ("crumbs", "u1", 8)
NIBBLE_PLANE, CRUMB_PLANE = Plane("nibbles", 4, 16), Plane("crumbs", 2, 8)


def quantizer_of(
    table: Sequence[float], extreme: float, *, width: float = 0.0, tries: int = 0
) -> Callable[[Floats, Floats], Parts]:
    """The quantiser to a table: its scale is searched for (:class:`ScaleSearch`).

    Args:
        table: what codes stand for; of equal numbers the first is used, and NaN is never used.
        extreme: the number that the value of largest magnitude is tried at.
        width: it is tried at so far from each other,
        tries: so many on either side of ``extreme``.
    """
    numbers, codes = np.unique(np.array(table, np.float32), return_index=True)
    used = np.isfinite(numbers) & (np.abs(numbers) <= abs(extreme))
    used_codes = codes[used].astype(np.uint8)
    search = ScaleSearch(Numbers(numbers[used].tolist()), GROUP, around(extreme, width, tries))

    def quantize(values: Floats, importance: Floats) -> Parts:
        found = search(values, importance)
        return found._replace(codes=used_codes[found.codes])

    return quantize


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
