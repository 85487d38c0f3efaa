"""Four-bit linear layers on Intel GPUs, by PyTorch's operator (oneDNN), with the layout that it reads.

``aten::_weight_int4pack_mm_with_scales_and_zeros(x, codes, group, scales, zeros)``, PyTorch 2.7 and later, XPU only:

=======  ==========================  =========================================================
x        fp16 or bf16 [rows, K]      K a multiple of the group, and the group one of 32
codes    int32 [N, K / 8]            nibble i of word j, from the lowest bits, is input 8 j + i
scales   like x [K / group, N]
zeros    int8 [K / group, N]         w = scale * (code - zero)
=======  ==========================  =========================================================

sym_int4 has a zero point of 8. asym_int4 is ``scale * code + minimum``, where the minimum need not be a multiple of the
scale: it gets the nearest integer zero point. The remainder, at most half a scale per input, is added as the sum of the
group's activations times the remainder: exact, for one more small product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ipex_lookahead.errors import EngineError
from ipex_lookahead.formats.base import GROUP, PackedWeight

OPERATOR = "_weight_int4pack_mm_with_scales_and_zeros"

Product = Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor, torch.Tensor], torch.Tensor]


def operator() -> Product:
    """Return PyTorch's operator. Raises EngineError if this PyTorch lacks it."""
    found: Product | None = getattr(torch.ops.aten, OPERATOR, None)
    if found is None:
        raise EngineError(f"PyTorch {torch.__version__} has no {OPERATOR}", hint="PyTorch 2.7 or later has it")
    return found


class XpuInt4Kernel(nn.Module):
    """A four-bit linear layer; see the module. float32 activations are multiplied in float16.

    Args:
        weight: sym_int4 or asym_int4.
        device: the layer's device.
        product: the operator; tests pass one that computes the same on the CPU.
    """

    name = "xpu-int4"

    def __init__(self, weight: PackedWeight, device: torch.device, product: Product | None = None) -> None:
        super().__init__()
        if weight.format not in ("sym_int4", "asym_int4"):
            raise EngineError(f"it multiplies sym_int4 and asym_int4, not {weight.format}")
        self.product = operator() if product is None else product
        self.format = weight.format
        self.shape = (weight.shape[0], weight.shape[1])
        self.group_size = weight.group_size
        assert weight.scales is not None
        self.codes: torch.Tensor
        self.scale_bits: torch.Tensor
        self.zeros: torch.Tensor
        groups = weight.scales.shape[1]
        scale_bits = np.ascontiguousarray(weight.scales.T).view(np.int16)
        zeros, leftover = zero_points(weight)
        self.register_buffer("codes", torch.from_numpy(words(weight, groups)).to(device), persistent=False)
        self.register_buffer("scale_bits", torch.from_numpy(scale_bits).to(device), persistent=False)
        self.register_buffer("zeros", torch.from_numpy(zeros).to(device), persistent=False)
        self._minimums = weight.minimums
        self._leftover = None if leftover is None else torch.from_numpy(leftover)
        self._cast: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor | None]] = {}

    @property
    def device(self) -> torch.device:
        """The weight's device."""
        return self.codes.device

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """See ``LinearKernel.run``."""
        rows = x.reshape(-1, self.shape[1])
        rows = rows if x.dtype in (torch.float16, torch.bfloat16) else rows.to(torch.float16)
        scales, leftover = self._in(rows.dtype)
        padding = scales.shape[0] * self.group_size - self.shape[1]
        rows = nn.functional.pad(rows, (0, padding)) if padding else rows.contiguous()
        out = self.product(rows, self.codes, self.group_size, scales, self.zeros)
        if leftover is not None:
            sums = rows.view(rows.shape[0], -1, self.group_size).sum(dim=2, dtype=torch.float32)
            out = out + sums.to(rows.dtype) @ leftover
        return out.to(x.dtype).view(*x.shape[:-1], self.shape[0])

    def weight(self) -> PackedWeight:
        """See ``LinearKernel.weight``."""
        blocks = -(-self.shape[1] // GROUP)
        codes = np.ascontiguousarray(self.codes.cpu().numpy()).view(np.uint8)
        pairs = np.stack((codes & 15, codes >> 4), axis=2).reshape(self.shape[0], -1, 2, GROUP // 2)[:, :blocks]
        packed = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(self.shape[0], -1)
        scales = np.ascontiguousarray(self.scale_bits.cpu().numpy().T).view(np.uint16)
        return PackedWeight(self.format, self.shape, packed, self.group_size, scales, self._minimums)

    def _in(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return scales and remainders of zero points, [groups, n_out] in the activations' dtype."""
        found = self._cast.get(dtype)
        if found is None or found[0].device != self.device:
            scales = self.scale_bits.view(torch.float16).to(dtype)
            leftover = None if self._leftover is None else self._leftover.to(self.device, dtype)
            self._cast[dtype] = found = (scales, leftover)
        return found


def words(weight: PackedWeight, groups: int) -> npt.NDArray[np.int32]:
    """Return the codes in the operator's layout, int32 [n_out, groups * group_size / 8]; padding has code 8."""
    packed: Any = weight.codes
    n_out = weight.shape[0]
    blocks = packed.reshape(n_out, -1, GROUP // 2)
    codes = np.concatenate((blocks & 15, blocks >> 4), axis=2).reshape(n_out, -1)
    codes = np.pad(codes, ((0, 0), (0, groups * weight.group_size - codes.shape[1])), constant_values=8)
    pairs = codes[:, 0::2] | codes[:, 1::2] << 4
    return np.ascontiguousarray(pairs.astype(np.uint8)).view("<i4").astype(np.int32, copy=False)


def zero_points(weight: PackedWeight) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32] | None]:
    """Return zero points, int8 [groups, n_out], and remainders ``minimum + scale * zero``, float32 or None if all 0."""
    assert weight.scales is not None
    scales = weight.scales.T.view(np.float16).astype(np.float32)
    if weight.minimums is None:
        return np.full(scales.shape, 8, np.int8), None
    minimums = weight.minimums.T.view(np.float16).astype(np.float32)
    whole = np.divide(-minimums, scales, out=np.zeros_like(scales), where=scales != 0)
    zeros = np.clip(np.rint(whole), -128, 127)
    leftover = minimums + scales * zeros
    return np.ascontiguousarray(zeros.astype(np.int8)), np.ascontiguousarray(leftover) if leftover.any() else None
