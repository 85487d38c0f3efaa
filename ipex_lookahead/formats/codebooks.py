"""Blocks of 32 codes that count a table of numbers, with one scale: w = scale * table[code], rounded once.

They are no types of GGUF's. Tables of whole numbers within int8 are taken as such by the kernels, others as floats.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.formats.base import GROUP
from ipex_lookahead.formats.blocks import Plane
from ipex_lookahead.formats.search import TableSearch

SCALE = ("scale", "<u2")
NIBBLES, CRUMBS = ("nibbles", "u1", 16), ("crumbs", "u1", 8)
NIBBLE_PLANE, CRUMB_PLANE = Plane("nibbles", 4, 16), Plane("crumbs", 2, 8)


def quantizer_of(table: Sequence[float], extreme: float, *, width: float = 0.0, tries: int = 0) -> TableSearch:
    """The quantiser to a table with a binary16 scale; see ``TableSearch.of``."""
    return TableSearch.of(table, GROUP, extreme, width, tries)


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
