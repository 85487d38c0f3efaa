"""A format is declared once for Python and once for the kernels: both say the same, and nothing else lists formats."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.engines.native.core import weight_formats
from ipex_lookahead.formats import FLOATS, FORMATS
from ipex_lookahead.formats.blocks import BlockFormat
from ipex_lookahead.formats.codebooks import minifloats

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")


def test_the_core_has_every_format_and_no_other() -> None:
    assert weight_formats().keys() == FORMATS.keys()
    assert {name for name, facts in weight_formats().items() if "codes" not in facts} == {*FLOATS}


@pytest.mark.parametrize("name", FORMATS)
def test_streams_are_the_same(name: str) -> None:
    facts, streams = weight_formats()[name], {stream.name: stream for stream in FORMATS[name].streams}
    codes = streams["codes"]
    assert (facts["inputs"], facts["bytes"]) == (codes.inputs, codes.elements * codes.itemsize)
    assert facts["scales_apart"] == ("scales" in streams)
    assert facts["minimums_apart"] == ("minimums" in streams)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in FLOATS])
def test_codes_stand_for_the_same(name: str) -> None:
    facts, low_bit = weight_formats()[name], FORMATS[name]
    if not isinstance(low_bit, BlockFormat) or low_bit.table is None:
        middle = 1 << int(low_bit.bits) - 1
        assert facts["zero"] in (getattr(low_bit, "zero", 0), middle)  # signed codes lie in tiles from the middle on
        assert facts["table"] is facts["minifloat"] is facts["code_table"] is None
        return
    table = np.array(low_bit.table, np.float32)
    if facts["code_table"] is not None:  # whole numbers; of fp4 twice the value, halved by its scale
        whole = np.array(facts["code_table"], np.float32) - np.float32(facts["zero"])
        assert np.array_equal(whole / (2 if name == "fp4" else 1), table)
    elif facts["minifloat"] is not None:
        magnitude, mantissa, bias = facts["minifloat"]
        assert low_bit.table == minifloats(magnitude - mantissa, mantissa, bias)
    elif facts["table"] is not None:
        assert np.array_equal(np.array(facts["table"], np.float32)[: len(table)], table)
        assert not any(facts["table"][len(table) :])
    else:  # eight bits of whole numbers: the table counts them
        assert np.array_equal(table, np.roll(np.arange(256) - facts["zero"], -facts["zero"]))


@pytest.mark.parametrize("name", ["nf3", "fp6", "q3_k", "iq4_xs", "sym_int2", "zero_int4", "bnb_fp4"])
def test_the_places_of_a_format_are_those_that_the_page_names(name: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    row = re.search(r"^\| a low-bit format \|.*$", page, re.MULTILINE)
    assert row is not None
    places = {*re.findall(r"`([\w./]+\.(?:py|h))`", row[0])}
    declared = re.search(rf"FORMAT\({name}, (\w+),", (ROOT / "csrc/kernels/formats.h").read_text(encoding="utf-8"))
    assert declared is not None
    named = re.compile(rf"\b({name}|{declared[1]})\b")
    found = set()
    for folder in (ROOT / "ipex_lookahead", ROOT / "csrc"):
        for file in (each for kind in ("*.py", "*.h", "*.inl", "*.cc", "*.cl") for each in folder.rglob(kind)):
            short = file.relative_to(ROOT).as_posix().removeprefix("ipex_lookahead/")
            if not short.startswith("checkpoints/") and named.search(file.read_text(encoding="utf-8")):
                found.add(short)  # readers of others' files say which of ours they become
    assert found == places
