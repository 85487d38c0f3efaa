"""GGUF's tensor types by number: block sizes, and the format that values are read as."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_lookahead.formats import FORMATS


@dataclass(frozen=True, slots=True)
class TensorType:
    """A storage type with ``block`` values per ``nbytes`` bytes.

    ``format`` is a key of ``FORMATS``, or empty for a type that cannot be read. ``decoded`` is True if the type is not
    one of ``FORMATS`` and its values are converted to ``format``.
    """

    name: str
    block: int
    nbytes: int
    format: str
    decoded: bool = False


TENSOR_TYPES = {
    low_bit.gguf.number: TensorType(low_bit.gguf.name, low_bit.gguf.inputs, low_bit.gguf.record.itemsize, name)
    for name, low_bit in FORMATS.items()
    if low_bit.gguf is not None
}
"""Types that are read as they are, by their number in the file."""

DECODED_TYPES = {
    number: TensorType(*known, decoded=True)
    for number, known in {
        16: ("IQ2_XXS", 256, 66, "fp16"), 17: ("IQ2_XS", 256, 74, "fp16"), 18: ("IQ3_XXS", 256, 98, "q6_k"),
        19: ("IQ1_S", 256, 50, "q6_k"), 21: ("IQ3_S", 256, 110, "q6_k"), 22: ("IQ2_S", 256, 82, "fp16"),
        29: ("IQ1_M", 256, 56, "q6_k"), 34: ("TQ1_0", 256, 54, "sym_int2"), 35: ("TQ2_0", 256, 66, "sym_int2"),
        40: ("NVFP4", 64, 36, "fp16"),
    }.items()
}  # fmt: skip
"""Types that are decoded on reading; ``gguf_decoded.py`` explains the choice of formats."""

REPACKED_TYPES = {
    41: TensorType("Q1_0", 128, 18, "sym_int2", decoded=True), 42: TensorType("Q2_0", 64, 18, "sym_int2", decoded=True),
}  # fmt: skip
"""Types with codes that are moved into another format's blocks exactly (``gguf_decoded.py``)."""
Q2_0_OF_128 = TensorType("Q2_0", 128, 34, "sym_int2", decoded=True)
"""Type 42 in files published before llama.cpp supported it: blocks are twice as large."""

READ_TYPES = TENSOR_TYPES | DECODED_TYPES | REPACKED_TYPES
"""All readable types."""

OTHER_TYPES = {
    number: TensorType(*known, "")
    for number, known in {
        9: ("Q8_1", 32, 40), 15: ("Q8_K", 256, 292), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
        27: ("I64", 1, 8), 28: ("F64", 1, 8),
    }.items()
}  # fmt: skip
"""Types with known sizes that can be listed but not read."""
REMOVED_TYPES = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}  # fmt: skip


def names_of_read_types() -> str:
    """Return the readable types, for error messages."""
    return ", ".join(sorted(kind.name for kind in READ_TYPES.values()))
