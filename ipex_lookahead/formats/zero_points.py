"""Formats with zero points: w = scale * (code - zero), with a whole-number zero per group of inputs.

GPTQ (arXiv 2210.17323), AWQ (arXiv 2306.00978) and most related methods define weights this way. The product of a
binary16 scale and a small whole number is exact in float32, whereas ``scale * code + minimum`` would round the minimum
to binary16. Zero points are held in binary16, like minimums, so kernels handle both alike. With groups of 128 inputs a
weight takes 4.25 bits, compared with 4.16 in the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import GROUP, NIBBLES, BadScale, PackedWeight, Stream, check_streams
from ipex_lookahead.formats.float_base import from_binary16
from ipex_lookahead.formats.groups import GroupFormat, first_bad_half, groups_of, pack_nibbles, row_chunks
from ipex_lookahead.formats.search import Parts

ZERO_GROUP_SIZES = (32, 64, 128, 1024)
"""Allowed numbers of inputs per scale. Other group sizes of a file use the largest of these that divides them."""


@dataclass(frozen=True, slots=True)
class ZeroPointFormat(GroupFormat):
    """A format of unsigned codes with a scale and a zero point per group of inputs."""

    def padding(self, parts: Parts, groups: int) -> Any:
        assert parts.minimum is not None
        zeros = from_binary16(parts.minimum).reshape(-1, groups)
        return zeros[:, -1:].astype(np.uint8)

    def packed(self, codes: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        return pack_nibbles(codes) if self.streams[0] == NIBBLES else codes

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """Return ``scale * (code - zero)``, float32 [n_out, n_in], exact."""
        check_streams(weight, self)
        assert weight.scales is not None
        assert weight.minimums is not None
        n_out, n_in = weight.shape
        values = np.empty((n_out, n_in), np.float32)
        for rows in row_chunks(n_out, n_in):
            part = self.whole(weight.codes[rows])[:, :n_in].astype(np.float32)
            scales, zeros = (
                np.repeat(from_binary16(stream[rows]), weight.group_size, axis=1)[:, :n_in]
                for stream in (weight.scales, weight.minimums)
            )
            values[rows] = (part - zeros) * scales
        return values

    def random(self, shape: tuple[int, int], group_size: int, rng: np.random.Generator) -> PackedWeight:
        n_out, n_in = shape
        codes = rng.integers(0, 256, (n_out, self.streams[0].shape(shape, group_size)[1]), np.uint8)
        levels = 1 << int(self.bits)
        groups = (n_out, groups_of(n_in, group_size))
        zeros = rng.integers(levels // 2 - 2, levels // 2 + 2, groups).astype(np.float16).view(np.uint16)
        scales = np.full(groups, 12**0.5 / levels * n_in**-0.5, np.float16).view(np.uint16)
        return PackedWeight(self.name, shape, codes, group_size, scales, zeros)

    def bad_scale(self, name: str, array: npt.NDArray[Any]) -> BadScale | None:
        # GPTQ's first files have zero points up to one more than the largest code.
        if name != "minimums":
            return None if name == "codes" else first_bad_half(array, "scale")
        zeros, most = from_binary16(array), 1 << int(self.bits)
        bad = ~((zeros >= 0) & (zeros <= most) & (np.rint(zeros) == zeros))
        if not bad.any():
            return None
        return BadScale(int(bad.argmax()), "zero point", f"is not a whole number from 0 to {most}")


def pack_codes(codes: npt.NDArray[np.uint8], stream: Stream, rest: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Pack codes uint8 [n_out, n_in] into blocks of 32 of a stream; ``rest``, broadcast, pads the last block."""
    n_out, n_in = codes.shape
    whole = np.empty((n_out, -(-n_in // GROUP) * GROUP), np.uint8)
    whole[:, :n_in] = codes
    whole[:, n_in:] = rest
    return pack_nibbles(whole) if stream == NIBBLES else whole
