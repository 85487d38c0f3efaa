"""Integer weights of quantized folders: unpacking of codes, and exact conversion of scale * (code - zero).

A zero point that equals the middle code everywhere is not stored. With 2 and 3 bits any other zero point is subtracted
from the code, which then fits a symmetric format with one more bit. With 4 and 8 bits zero points are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from ipex_lookahead.formats.zero_points import ZeroPointFormat, pack_codes

_HOLDS = {
    (2, True): "sym_int2", (3, True): "sym_int3", (4, True): "sym_int4", (8, True): "sym_int8",
    (2, False): "sym_int3", (3, False): "sym_int4", (4, False): "zero_int4", (8, False): "zero_int8",
}  # fmt: skip
"""(bits, True if all zero points are the middle code) -> the format that holds scale * (code - zero)."""
_MIDDLES = {"sym_int2": 2, "sym_int3": 4, "sym_int4": 8, "sym_int8": 128}
"""Symmetric format -> the unsigned code that represents 0."""


def is_half(values: npt.NDArray[np.float32]) -> bool:
    """Return True if binary16 represents all values."""
    return bool((from_binary16(to_binary16(values)) == values).all())


def nibbles(packed: Array) -> npt.NDArray[np.uint8]:
    """Unpack bytes [..., n] to four-bit codes [..., 2 n], the low nibble first."""
    data = np.ascontiguousarray(packed).view(np.uint8)
    return np.stack((data & 15, data >> 4), axis=-1).reshape(*data.shape[:-1], -1)


def codes_of(words: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Unpack int32 words [..., n] to codes [..., n * 32 / bits], the lowest bits first.

    ``bits`` is 2, 3, 4 or 8. Codes of 3 bits cross word boundaries: three words hold 32 of them.
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
    """Return the number of codes that fill whole words."""
    return 32 if bits == 3 else 32 // bits


@dataclass(frozen=True, slots=True)
class Grouped:
    """Quantization scale * (code - zero) with scale and zero shared by groups of a row's inputs.

    Attributes:
        bits: 2, 3, 4 or 8.
        group: inputs per group; -1: the whole row.
        symmetric: True if zero is the middle code, ``2 ** (bits - 1)``, everywhere.
    """

    bits: int
    group: int
    symmetric: bool

    def size(self, n_in: int) -> int:
        """Return the group size for a row of ``n_in`` inputs."""
        return n_in if self.group == -1 else self.group

    def groups(self, n_in: int) -> int:
        """Return the number of groups in a row."""
        return -(-n_in // self.size(n_in))

    def info(self, tensor: Tensor, group_of: Array | None = None, *, decoded: str = "") -> TensorInfo:
        """Return the format that holds the matrix exactly.

        Args:
            tensor: the matrix.
            group_of: result of :meth:`order`.
            decoded: reason for decoding to float32. It is also used if the group size is not a multiple of 32, or
                inputs sorted by ``group_of`` do not form whole groups.
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
        """Return :meth:`info` of a matrix with these ``scales``, which are read unless they are binary16."""
        whole = layer.kind(scales) == "F16" or is_half(layer.floats(scales))
        return self.info(tensor, group_of, decoded="" if whole else "scales outside binary16")

    def order(self, tensor: Tensor, layer: Layer, part: str) -> Array | None:
        """Return the group of each input from the tensor ``part``; None if groups are consecutive inputs.

        Raises:
            ModelFormatError: if a group index is out of range.
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
        """Return the matrix in the format of ``info``.

        Args:
            info: result of :meth:`info`.
            codes: uint8 [n_out, n_in].
            scales: float32 [n_out, groups].
            zeros: whole numbers [n_out, groups]; None if ``symmetric``.
            group_of: group of each input [n_in]; None: ``group`` consecutive inputs form one.
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
    """Return the largest group size of a format that divides groups of ``size`` inputs; None if there is none."""
    divide = [n for n in FORMATS[form].group_sizes if size % (n or GROUP) == 0 or size >= n_in]
    return max(divide, default=None)


def symmetric_weight(
    info: TensorInfo, codes: npt.NDArray[np.uint8], halves: npt.NDArray[np.uint16], order: Any = None
) -> PackedWeight:
    """Return a matrix from codes [n_out, n_in] with the format's zero and binary16 scale bits [n_out, groups]."""
    target, middle = FORMATS[info.format], np.uint8(_MIDDLES[info.format])
    if isinstance(target, BlockFormat):
        return replace(target.matrix(codes, halves), order=order)
    whole = pack_codes(codes, target.streams[0], middle)
    if info.format == "sym_int8":
        whole = (whole ^ middle).view(np.int8)
    return PackedWeight(info.format, info.shape, whole, info.group_size, halves, order=order)
