"""The build options of ``kernels/tiles.cl`` for each weight format, from the core's description of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ipex_lookahead.engines.native.core import weight_formats

FLOATS = "FLOATS"
"""The value of ``CODES`` for float formats."""


@cache
def defines(name: str) -> tuple[str, ...]:
    """Return compiler options for a weight format: numbers for the names in tiles.cl, and the format's values."""
    every = weight_formats()
    facts = every[name]
    kinds = {
        "CODES": [FLOATS, *_each(every, "codes")],
        "SCALES": _each(every, "scales"),
        "FLOAT_KIND": [kind.upper() for kind, one in every.items() if "codes" not in one],
    }
    options: dict[str, Any] = {kind: number for words in kinds.values() for number, kind in enumerate(words)}
    options |= {"CODES": facts.get("codes", FLOATS), "SCALES": facts.get("scales", kinds["SCALES"][0])}
    if "codes" not in facts:
        options["FLOAT_KIND"] = name.upper()
    if has_whole_codes(name):
        options |= {"INTEGERS": 1, "ZERO": facts["zero"]}
    if (minifloat := facts["minifloat"]) is not None:
        magnitude, mantissa, bias = (
            minifloat  # where they belong in a float32, and what makes up for the exponent's bias
        )
        options |= {"MAGNITUDE": magnitude, "MAGNITUDE_SHIFT": 23 - mantissa, "POWER": 127 - bias}
    if facts["table"] is not None:
        options["VALUE_TABLE"] = ",".join(f"{np.float32(value)}f" for value in facts["table"])
    if facts.get("code_table") is not None:
        options["CODE_TABLE"] = ",".join(map(str, facts["code_table"]))
    return tuple(f"-D{option}={value}" for option, value in options.items())


def has_whole_codes(name: str) -> bool:
    """Return True if products are of integers; for other formats activations stay floats."""
    return "zero" in weight_formats()[name]


def _each(every: dict[str, dict[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(facts[key] for facts in every.values() if key in facts))
