"""Whole-number codes of quantised folders: how they lie in words, and scale * (code - zero) in a format that holds it.

Values are kept exactly. A zero point that is the middle code everywhere needs no place. Of codes of 2 and 3 bits any
other is taken from the code, which then fits a symmetric format of one bit more; of 4 and 8 bits it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.quantized_layers import Array, Layer
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import GROUP, PackedWeight
from ipex_lookahead.formats.blocks import BlockFormat
from ipex_lookahead.formats.float_base import from_binary16, to_binary16
from ipex_lookahead.formats.search import Parts
from ipex_lookahead.formats.zero_points import ZeroPointFormat, pack_codes

_HOLDS = {
    (2, True): "sym_int2", (3, True): "sym_int3", (4, True): "sym_int4", (8, True): "sym_int8",
    (2, False): "sym_int3", (3, False): "sym_int4", (4, False): "zero_int4", (8, False): "zero_int8",
}  # fmt: skip
"""(bits, whether all zero points are the middle code) -> the format that holds scale * (code - zero)."""
_MIDDLES = {"sym_int2": 2, "sym_int3": 4, "sym_int4": 8, "sym_int8": 128}
"""The unsigned code that stands for 0 in a format that keeps no zero points."""


def is_half(values: npt.NDArray[np.float32]) -> bool:
    """Whether binary16 holds all of the values."""
    return bool((from_binary16(to_binary16(values)) == values).all())


def nibbles(packed: Array) -> npt.NDArray[np.uint8]:
    """Rows of bytes [..., n] to codes of four bits [..., 2 n], the low one first."""
    data = np.ascontiguousarray(packed).view(np.uint8)
    return np.stack((data & 15, data >> 4), axis=-1).reshape(*data.shape[:-1], -1)


def codes_of(words: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Rows of int32 words [..., n] to the codes in them [..., n * 32 / bits], the lowest bits first.

    ``bits`` is 2, 3, 4 or 8. Codes of 3 bits go on across words, 32 of them in three.
    """
    data = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return data
    if bits == 4:
        return nibbles(data)
    if bits == 2:
        return np.stack([data >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1).reshape(*data.shape[:-1], -1)
    threes = data.reshape(*data.shape[:-1], -1, 3).astype(np.uint32)  # 24 bits are eight codes
    eights = threes[..., 0] | threes[..., 1] << 8 | threes[..., 2] << 16
    codes = np.stack([(eights >> shift & 7).astype(np.uint8) for shift in range(0, 24, 3)], axis=-1)
    return codes.reshape(*data.shape[:-1], -1)


def in_whole_words(bits: int) -> int:
    """Of how many codes a multiple fills whole words."""
    return 32 if bits == 3 else 32 // bits


@dataclass(frozen=True, slots=True)
class Grouped:
    """How values follow from codes: scale * (code - zero), scale and zero shared by groups of a row's inputs.

    Attributes:
        bits: 2, 3, 4 or 8.
        group: inputs of a group; -1: all.
        symmetric: zero is the middle code, ``2 ** (bits - 1)``, everywhere.
    """

    bits: int
    group: int
    symmetric: bool

    def size(self, n_in: int) -> int:
        """Inputs in a group of a row of ``n_in``."""
        return n_in if self.group == -1 else self.group

    def groups(self, n_in: int) -> int:
        """Groups in a row."""
        return -(-n_in // self.size(n_in))

    def info(self, tensor: Tensor, group_of: Array | None = None, *, decoded: str = "") -> TensorInfo:
        """What holds such a matrix exactly; float32 where ``decoded`` says why, or 32 divides no group.

        ``group_of`` is what :meth:`order` gives: inputs sorted by it must be in whole groups.
        """
        n_in = tensor.shape[1]
        if group_of is not None and not np.array_equal(np.sort(group_of), np.arange(n_in) // self.size(n_in)):
            decoded = decoded or "groups of many sizes"
        kept = _HOLDS[self.bits, self.symmetric]
        group_size, size = fitting(kept, self.size(n_in), n_in), self.size(n_in)
        if group_size is None and not decoded:
            decoded = f"groups of {size}"
        if decoded or group_size is None:
            return TensorInfo(tensor.shape, "fp32", decoded_from=f"int{self.bits}, {decoded}")
        return TensorInfo(tensor.shape, kept, group_size, ordered=group_of is not None)

    def info_of(
        self, tensor: Tensor, layer: Layer, scales: str = "scales", group_of: Array | None = None
    ) -> TensorInfo:
        """:meth:`info` of a matrix with these ``scales``, which are read where they are not binary16."""
        whole = layer.kind(scales) == "F16" or is_half(layer.floats(scales))
        return self.info(tensor, group_of, decoded="" if whole else "scales that are no binary16 numbers")

    def order(self, tensor: Tensor, layer: Layer, part: str) -> Array | None:
        """The group of each input as the tensor ``part`` says; None where neighbours are together as they lie.

        Raises ModelFormatError for a group that there is not.
        """
        if part not in layer:
            return None
        n_in = tensor.hf.shape[1]
        layer.check(part, (n_in,), "I32")
        found, groups = layer.read(part), self.groups(n_in)
        if (bad := (found < 0) | (found >= groups)).any():
            at = int(bad.argmax())
            raise layer.error(part, f"value {at} is {found[at]}; groups are from 0 to {groups - 1}", at)
        return None if np.array_equal(found, np.arange(n_in) // self.size(n_in)) else found

    def weight(
        self,
        info: TensorInfo,
        codes: npt.NDArray[np.uint8],
        scales: npt.NDArray[np.float32],
        zeros: Array | None,
        group_of: Array | None = None,
    ) -> PackedWeight:
        """The matrix as ``info`` says.

        Args:
            info: from :meth:`info`.
            codes: uint8 [n_out, n_in].
            scales: float32 [n_out, groups].
            zeros: whole numbers [n_out, groups]; None where ``symmetric``.
            group_of: the group of each input [n_in]; None: ``group`` neighbours are one.
        """
        n_in = codes.shape[1]
        of_inputs = np.arange(n_in) // self.size(n_in)
        middle = np.uint8(1 << (self.bits - 1))
        if info.format == "fp32":
            index = of_inputs if group_of is None else group_of
            values = codes.astype(np.float32)
            values -= np.float32(middle) if zeros is None else zeros.astype(np.float32)[:, index]
            values *= scales[:, index]
            return PackedWeight("fp32", info.shape, values)
        order = None if group_of is None else np.argsort(group_of, kind="stable").astype(np.int32)
        if order is not None:
            codes = codes[:, order]
        target = FORMATS[info.format]
        first = np.arange(0, n_in, info.group_size or GROUP) // self.size(n_in)
        halves = to_binary16(np.ascontiguousarray(scales[:, first]))
        if isinstance(target, ZeroPointFormat):
            assert zeros is not None
            packed = pack_codes(codes, target.streams[0], zeros[:, -1:])
            kept = np.ascontiguousarray(zeros[:, first]).astype(np.float16).view(np.uint16)
            return PackedWeight(info.format, info.shape, packed, info.group_size, halves, kept, order)
        up = np.uint8(_MIDDLES[info.format])
        if zeros is not None:
            codes = codes + (up - zeros.astype(np.uint8))[:, of_inputs]
        return symmetric_weight(info, codes, halves, order)


def fitting(form: str, size: int, n_in: int) -> int | None:
    """The largest group size of a format that divides groups of ``size`` inputs; None where none does."""
    divide = [n for n in FORMATS[form].group_sizes if size % (n or GROUP) == 0 or size >= n_in]
    return max(divide, default=None)


def symmetric_weight(
    info: TensorInfo, codes: npt.NDArray[np.uint8], halves: npt.NDArray[np.uint16], order: Any = None
) -> PackedWeight:
    """A matrix whose codes [n_out, n_in] count from the format's middle; ``halves``: binary16 bits [n_out, groups]."""
    target, middle = FORMATS[info.format], np.uint8(_MIDDLES[info.format])
    if isinstance(target, BlockFormat):
        n_out, n_in = codes.shape
        padded = np.pad(codes, ((0, 0), (0, -n_in % GROUP)), constant_values=middle).reshape(n_out, -1, GROUP)
        records = target.pack(Parts(padded, halves), n_in).view(np.uint8).reshape(n_out, -1)
        return PackedWeight(info.format, info.shape, records, order=order)
    whole = pack_codes(codes, target.streams[0], middle)
    if info.format == "sym_int8":
        whole = (whole ^ middle).view(np.int8)
    return PackedWeight(info.format, info.shape, whole, info.group_size, halves, order=order)
