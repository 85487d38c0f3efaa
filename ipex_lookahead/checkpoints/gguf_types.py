"""GGUF's tensor types by their number in a file: how large blocks are, and what their values are kept in."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_lookahead.formats import FORMATS


@dataclass(frozen=True, slots=True)
class TensorType:
    """How a tensor's values are stored: ``block`` of them take ``nbytes`` bytes.

    ``format`` is a key of ``FORMATS``, and empty for a type that is not read. ``decoded``: the type is none of ours,
    and ``format`` is what its values are kept in.
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
"""The tensor types that are read, by their number in the file."""

DECODED_TYPES = {
    number: TensorType(*known, decoded=True)
    for number, known in {
        16: ("IQ2_XXS", 256, 66, "fp16"), 17: ("IQ2_XS", 256, 74, "fp16"), 18: ("IQ3_XXS", 256, 98, "q6_k"),
        19: ("IQ1_S", 256, 50, "q6_k"), 21: ("IQ3_S", 256, 110, "q6_k"), 22: ("IQ2_S", 256, 82, "fp16"),
        29: ("IQ1_M", 256, 56, "q6_k"), 34: ("TQ1_0", 256, 54, "sym_int2"), 35: ("TQ2_0", 256, 66, "sym_int2"),
        40: ("NVFP4", 64, 36, "fp16"),
    }.items()
}  # fmt: skip
"""Types that are decoded when they are read; ``gguf_decoded.py`` says why these formats."""

REPACKED_TYPES = {
    41: TensorType("Q1_0", 128, 18, "sym_int2", decoded=True), 42: TensorType("Q2_0", 64, 18, "sym_int2", decoded=True),
}  # fmt: skip
"""Types whose codes are put into another format's blocks, exactly (``gguf_repacked.py``)."""
Q2_0_OF_128 = TensorType("Q2_0", 128, 34, "sym_int2", decoded=True)
"""The same number in the files that were published before llama.cpp had it: blocks twice as large."""

READ_TYPES = TENSOR_TYPES | DECODED_TYPES | REPACKED_TYPES
"""All types whose values are read."""

OTHER_TYPES = {
    number: TensorType(*known, "")
    for number, known in {
        9: ("Q8_1", 32, 40), 15: ("Q8_K", 256, 292), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
        27: ("I64", 1, 8), 28: ("F64", 1, 8),
    }.items()
}  # fmt: skip
"""Types whose sizes are known, so that a file of them can be described, and whose values are not read."""
REMOVED_TYPES = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}  # fmt: skip


def names_of_read_types() -> str:
    """The types whose values are read, for error messages."""
    return ", ".join(sorted(kind.name for kind in READ_TYPES.values()))
