"""What a low-bit format is: the meaning of the bits of a weight, with no device and no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

GROUP = 32
"""Inputs in one block of codes. Every integer format stores its codes in whole blocks of this many inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A tensor in *plain* (serialisable) order, float or low bit; what checkpoints hand out and engines take.

    Attributes:
        format: a key of ``FORMATS``.
        shape: logical shape: ``(n,)`` or ``(n_out, n_in)``; only float formats may be one-dimensional.
        codes: the bits, by format (``blocks = ceil(n_in / 32)``, a ragged last block is padded with the zero point):

            ================  ==========================  ==================================================
            fp32              float32 [*shape]
            fp16              uint16 [*shape]             IEEE binary16 bit patterns
            bf16              uint16 [*shape]             upper half of a float32
            sym_int8          int8 [n_out, blocks * 32]   w = scale * code
            sym_int4          uint8 [n_out, blocks * 16]  w = scale * (code - 8); byte i of a block holds code i in its
                                                          low and code i + 16 in its high nibble, as in GGUF's Q4_0
            asym_int4         uint8 [n_out, blocks * 16]  w = scale * code + minimum; as in GGUF's Q4_1
            ================  ==========================  ==================================================

        group_size: inputs that share a scale, 32 or 64; 0 for float formats.
        scales: uint16 [n_out, ceil(n_in / group_size)], binary16 bit patterns; None for float formats.
        minimums: as ``scales``, for asym_int4 only.
    """

    format: str
    shape: tuple[int, ...]
    codes: npt.NDArray[np.generic]
    group_size: int = 0
    scales: npt.NDArray[np.uint16] | None = None
    minimums: npt.NDArray[np.uint16] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held by all streams together."""
        return sum(a.nbytes for a in (self.codes, self.scales, self.minimums) if a is not None)


class LowBitFormat(Protocol):
    """One format. Implementations live one to a file and are listed in ``FORMATS``."""

    name: str
    bits: int
    group_sizes: tuple[int, ...]

    def quantize(self, weight: PackedWeight, group_size: int = 32, threads: int | None = None) -> PackedWeight:
        """A float weight [n_out, n_in] in this format. Raises LowBitFormatError for NaN or infinite values."""
        ...

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """The values the codes stand for, float32 [*shape]."""
        ...
