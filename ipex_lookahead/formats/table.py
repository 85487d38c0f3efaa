"""The table of all low-bit formats. A new format is a row here, a line in ``low_bits.py`` and one in the core.

In each row the comment gives the value of a code. Scales are binary16 and shared by 32 inputs unless noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipex_lookahead.formats.base import GROUP, MINIMUMS, NIBBLES, SCALES, ZEROS, GgufType, Stream
from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.codebooks import (
    BNB_FP4,
    E2M1,
    E2M1_DOUBLED,
    E3M2,
    E4M3,
    E4M3_HALF,
    E5M2,
    NORMAL_8,
    NORMAL_16,
    SPACED_16,
    ExponentSearch,
    TableSearch,
)
from ipex_lookahead.formats.float_base import FloatFormat
from ipex_lookahead.formats.groups import GroupFormat
from ipex_lookahead.formats.search import MinimumSearch, Numbers, ScaleSearch, ZeroSearch, steps_around
from ipex_lookahead.formats.steps import BYTES, EIGHT_SIGNED, FOUR_BITS, SIX_BITS, SIXTEEN_SIGNED
from ipex_lookahead.formats.zero_points import ZERO_GROUP_SIZES, ZeroPointFormat

_SCALE, _MINIMUM = ("scale", "<u2"), ("minimum", "<u2")
_UNSIGNED_BYTES = Stream("codes", np.uint8, 32, 32, "U8", "code i of a block in byte i")
_SIGNED_BYTES = Stream("codes", np.int8, 32, 32, "I8", "code i of a block in byte i")
_ZERO_TRIES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)
_SPACED_TRIES = steps_around(SPACED_16[0], 4, 4) + steps_around(120, 5, 2)


def _table(
    name: str,
    table: Sequence[float],
    extreme: float,
    *planes: Plane,
    width: float = 0.0,
    tries: int = 0,
    zero: int = 0,
    float_scale: bool = False,
) -> BlockFormat:
    """Return a format with codes that index ``table``; it is not a GGUF type.

    Args:
        name: name of the format.
        table: value of each code; with ``zero``, whole numbers from ``-zero`` on.
        extreme: see ``TableSearch.of``.
        planes: location of the codes' bits, one after the other behind the scale.
        width: see ``TableSearch.of``.
        tries: see ``TableSearch.of``.
        zero: number that is subtracted from a code instead of a table lookup.
        float_scale: True for a float32 scale shared by 64 inputs, as bitsandbytes and ipex-llm have it.
    """
    inputs, scale = (64, "<f4") if float_scale else (GROUP, "<u2")
    fields: list[Any] = [(plane.field, "u1", inputs * plane.bits // 8) for plane in planes]
    return BlockFormat(
        name,
        inputs=inputs,
        record=np.dtype([("scale", scale), *fields]),
        planes=planes,
        quantizer=TableSearch.of(table, inputs, extreme, width, tries, float_scale=float_scale),
        zero=zero,
        table=None if zero else tuple(table),
    )


_NIBBLES, _CRUMBS, _BYTES = Plane("nibbles", 4, 16), Plane("crumbs", 2, 8), Plane("bytes", 8, 32)
_THIRD, _FIFTH, _UPPER = Plane("third", 1, 1, up=2), Plane("fifth", 1, 1, up=4), Plane("upper", 2, 8, up=4)

FLOAT_FORMATS = (
    FloatFormat("fp16", 16, "F16", 1, "IEEE binary16 bit patterns"),
    FloatFormat("bf16", 16, "BF16", 30, "the upper half of a float32"),
    FloatFormat("fp32", 32, "F32", 0, "the value"),
)

GROUP_FORMATS = (
    # scale * (code - 8), the layout of GGUF's Q4_0. The scale may be negative, so that the largest magnitude can be -8.
    GroupFormat(
        "sym_int4",
        bits=4,
        zero=8,
        streams=(NIBBLES, SCALES),
        gguf=GgufType(2, "Q4_0", 32, np.dtype([("scales", "<u2"), ("codes", "u1", 16)])),
        search=ScaleSearch(Numbers(range(-8, 8)), 32, steps_around(-8, 0.25, 6)),
    ),
    # scale * code + minimum, the layout of GGUF's Q4_1.
    GroupFormat(
        "asym_int4",
        bits=4,
        zero=0,
        streams=(NIBBLES, SCALES, MINIMUMS),
        gguf=GgufType(3, "Q4_1", 32, np.dtype([("scales", "<u2"), ("minimums", "<u2"), ("codes", "u1", 16)])),
        search=MinimumSearch(15, 32, steps_around(15, 0.4, 4)),
    ),
    # scale * code with codes -127..127, the arithmetic of GGUF's Q8_0.
    GroupFormat(
        "sym_int8",
        bits=8,
        zero=0,
        streams=(_SIGNED_BYTES, SCALES),
        gguf=GgufType(8, "Q8_0", 32, np.dtype([("scales", "<u2"), ("codes", "i1", 32)])),
        search=ScaleSearch(Numbers(range(-127, 128)), 32, steps_around(127, 1, 4)),
    ),
    # scale * (code - zero), the arithmetic of GPTQ's and AWQ's checkpoints.
    ZeroPointFormat(
        "zero_int4",
        bits=4,
        zero=0,
        streams=(NIBBLES, SCALES, ZEROS),
        gguf=None,
        search=ZeroSearch(15, GROUP, _ZERO_TRIES),
        group_sizes=ZERO_GROUP_SIZES,
    ),
    # scale * (code - zero), the arithmetic of GPTQ's checkpoints.
    ZeroPointFormat(
        "zero_int8",
        bits=8,
        zero=0,
        streams=(_UNSIGNED_BYTES, SCALES, ZEROS),
        gguf=None,
        search=ZeroSearch(255, GROUP, _ZERO_TRIES),
        group_sizes=ZERO_GROUP_SIZES,
    ),
)

_BLOCK_FORMATS = (
    # scale * step * code - minimum * minimum_step; 16 parts of 16 inputs.
    BlockFormat(
        "q2_k",
        number=10,
        gguf_name="Q2_K",
        inputs=256,
        record=np.dtype([("steps", "u1", 16), ("crumbs", "u1", 64), _SCALE, _MINIMUM]),
        planes=(Plane("crumbs", 2, 32),),
        quantizer=MinimumSearch(3, 16, steps_around(3, 0.1, 8), 15),
        steps=FOUR_BITS,
    ),
    # scale * step * (code - 4); 16 parts of 16 inputs.
    BlockFormat(
        "q3_k",
        number=11,
        gguf_name="Q3_K",
        inputs=256,
        record=np.dtype([("third", "u1", 32), ("crumbs", "u1", 64), ("steps", "u1", 12), _SCALE]),
        planes=(Plane("crumbs", 2, 32), Plane("third", 1, 32, up=2)),
        quantizer=ScaleSearch(Numbers(range(-4, 4)), 16, steps_around(-4, 0.25, 4) + steps_around(3.6, 0.25, 3), -32),
        zero=4,
        steps=SIXTEEN_SIGNED,
    ),
    # scale * step * code - minimum * minimum_step; 8 parts of 32 inputs.
    BlockFormat(
        "q4_k",
        number=12,
        gguf_name="Q4_K",
        inputs=256,
        record=np.dtype([_SCALE, _MINIMUM, ("steps", "u1", 12), ("nibbles", "u1", 128)]),
        planes=(Plane("nibbles", 4, 32),),
        quantizer=MinimumSearch(15, 32, steps_around(15, 0.3, 4), 63),
        steps=SIX_BITS,
    ),
    # scale * step * code - minimum * minimum_step; 8 parts of 32 inputs.
    BlockFormat(
        "q5_k",
        number=13,
        gguf_name="Q5_K",
        inputs=256,
        record=np.dtype([_SCALE, _MINIMUM, ("steps", "u1", 12), ("fifth", "u1", 32), ("nibbles", "u1", 128)]),
        planes=(Plane("nibbles", 4, 32), Plane("fifth", 1, 32, up=4)),
        quantizer=MinimumSearch(31, 32, steps_around(31, 0.4, 4), 63),
        steps=SIX_BITS,
    ),
    # scale * step * (code - 32); 16 parts of 16 inputs.
    BlockFormat(
        "q6_k",
        number=14,
        gguf_name="Q6_K",
        inputs=256,
        record=np.dtype([("nibbles", "u1", 128), ("upper", "u1", 64), ("steps", "i1", 16), _SCALE]),
        planes=(Plane("nibbles", 4, 64), Plane("upper", 2, 32, up=4)),
        quantizer=ScaleSearch(Numbers(range(-32, 32)), 16, steps_around(-32, 1, 4), -128),
        zero=32,
        steps=BYTES,
    ),
    # scale * (code - 16), GGUF's Q5_0.
    BlockFormat(
        "sym_int5",
        number=6,
        gguf_name="Q5_0",
        inputs=32,
        record=np.dtype([_SCALE, ("fifth", "u1", 4), ("nibbles", "u1", 16)]),
        planes=(_NIBBLES, _FIFTH),
        quantizer=ScaleSearch(Numbers(range(-16, 16)), 32, steps_around(-16, 0.5, 4)),
        zero=16,
    ),
    # scale * code + minimum, GGUF's Q5_1.
    BlockFormat(
        "asym_int5",
        number=7,
        gguf_name="Q5_1",
        inputs=32,
        record=np.dtype([_SCALE, _MINIMUM, ("fifth", "u1", 4), ("nibbles", "u1", 16)]),
        planes=(_NIBBLES, _FIFTH),
        quantizer=MinimumSearch(31, 32, steps_around(31, 0.4, 4)),
    ),
    # scale * table[code].
    BlockFormat(
        "iq4_nl",
        number=20,
        gguf_name="IQ4_NL",
        inputs=32,
        record=np.dtype([_SCALE, ("nibbles", "u1", 16)]),
        planes=(_NIBBLES,),
        quantizer=ScaleSearch(Numbers(SPACED_16), 32, _SPACED_TRIES),
        table=SPACED_16,
    ),
    # scale * step * table[code]; 8 parts of 32 inputs.
    BlockFormat(
        "iq4_xs",
        number=23,
        gguf_name="IQ4_XS",
        inputs=256,
        record=np.dtype([_SCALE, ("steps", "u1", 6), ("nibbles", "u1", 128)]),
        planes=(_NIBBLES,),
        quantizer=ScaleSearch(Numbers(SPACED_16), 32, _SPACED_TRIES, -32),
        table=SPACED_16,
        steps=EIGHT_SIGNED,
    ),
    # table[code] * 2^(scale - 128), the scale being a byte: OCP Microscaling MXFP4, the format of gpt-oss.
    BlockFormat(
        "mxfp4",
        number=39,
        gguf_name="MXFP4",
        inputs=32,
        record=np.dtype([("scale", "u1"), ("nibbles", "u1", 16)]),
        planes=(_NIBBLES,),
        quantizer=ExponentSearch(),
        table=E2M1_DOUBLED,
    ),
    # scale * table[code]: mxfp4's numbers with an arbitrary scale instead of a power of two.
    _table("fp4", E2M1, 6.0, _NIBBLES, width=0.25, tries=7),
    _table("nf4", NORMAL_16, -1.0, _NIBBLES, width=0.02, tries=7),
    _table("nf3", NORMAL_8, -1.0, _CRUMBS, _THIRD, width=0.04, tries=7),
    # Values up to 447 (28 / 4096 times the largest scale).
    _table("fp6", E3M2, E3M2[31], _NIBBLES, _UPPER),
    # The largest value of a block becomes 28, or 14 in e5m2, so that scales are rarely subnormal. Codes of infinity and
    # NaN are never produced, and scale * value is exact in float32.
    _table("fp8_e4m3", E4M3, 28.0, _BYTES),
    _table("fp8_e5m2", E5M2, 14.0, _BYTES),
    # scale * (code - 4) and scale * (code - 2).
    _table("sym_int3", range(-4, 4), -4, _CRUMBS, _THIRD, width=0.15, tries=9, zero=4),
    _table("sym_int2", range(-2, 2), -2, _CRUMBS, width=0.15, tries=9, zero=2),
    # Formats of bitsandbytes and ipex-llm. In bitsandbytes the scale is the largest magnitude (absmax), which binary16
    # would round. Blocks of more than 64 inputs repeat their scale. LLM.int8() (arXiv 2208.07339) uses sym_int8_fp32.
    _table("bnb_nf4", NORMAL_16, 1.0, _NIBBLES, float_scale=True),
    _table("bnb_fp4", BNB_FP4, 1.0, _NIBBLES, float_scale=True),
    _table("sym_int8_fp32", (*range(128), *range(-128, 0)), 127.0, _BYTES, width=0.5, tries=3, float_scale=True),
    _table("fp8_e4m3_fp32", E4M3_HALF, E4M3_HALF[126], _BYTES, width=E4M3_HALF[126] / 60, tries=3, float_scale=True),
)

BLOCK_FORMATS = {row.name: row for row in _BLOCK_FORMATS}
"""The formats that store each block as one record, by name."""
