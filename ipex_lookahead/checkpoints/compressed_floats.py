"""Floats of compressed-tensors (llm-compressor): fp8, NVFP4 and MXFP4.

A layer ``NAME`` is, of fp8 ("float-quantized", "naive-quantized", "mxfp8-quantized"):
  NAME.weight               F8_E4M3 [n_out, n_in]
  NAME.weight_scale         [1] for all, [n_out, 1] for rows, [n_out, groups], or a number for each block of rows and
                            inputs; bytes of exponent in mxfp8
and of four bits ("nvfp4-pack-quantized", "mxfp4-pack-quantized"), two e2m1 codes a byte, the low nibble first:
  NAME.weight_packed        U8 [n_out, n_in / 2]
  NAME.weight_scale         F8_E4M3 [n_out, n_in / 16]; of MXFP4 bytes of exponent, U8 [n_out, n_in / 32]
  NAME.weight_global_scale  F32 [1], of NVFP4

w = code * scale; of NVFP4 code * (scale / global scale) in float32, rounded to bfloat16 as the library does it. Beside
these there may be scales of activations, ``input_scale`` and ``input_global_scale``: activations stay floats here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.quantized_floats import E4M3, EXPONENTS, FloatBlocks, e4m3_codes
from ipex_lookahead.checkpoints.quantized_groups import nibbles
from ipex_lookahead.checkpoints.quantized_layers import Array, Layer, Scheme, rows_of
from ipex_lookahead.formats import fp4
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import MOST_EXPONENT
from ipex_lookahead.formats.float_base import narrow
from ipex_lookahead.formats.groups import row_chunks
from ipex_lookahead.formats.mxfp4 import from_blocks_and_scales

NAME = "compressed-tensors"
E2M1 = np.array(fp4.TABLE, np.float32)
_NVFP4, _MXFP4 = 16, 32
"""Inputs that share a scale."""
_OF_ACTIVATIONS = ("input_scale", "input_zero_point", "input_global_scale", "weight_shape")


@dataclass(frozen=True, slots=True)
class CompressedFp8(Scheme):
    """Eight bits; see ``quantized_layers.Scheme``."""

    blocks: FloatBlocks
    name: ClassVar[str] = NAME
    tensors: ClassVar[tuple[str, ...]] = ("weight", "weight_scale", *_OF_ACTIVATIONS)
    marks: ClassVar[tuple[str, ...]] = ("weight_scale",)

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        """See ``Scheme.info``."""
        layer.check_plain(tensor, next(iter(layer.tensors)), "weight", "weight_scale")
        return self.blocks.info(tensor, layer, "weight", "weight_scale")

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        """See ``Scheme.read``."""
        return self.blocks.weight(info, layer, "weight", "weight_scale", rows_of(tensor))


@dataclass(frozen=True, slots=True)
class CompressedMxfp4(Scheme):
    """MXFP4, kept as it is; see ``quantized_layers.Scheme``."""

    name: ClassVar[str] = NAME
    tensors: ClassVar[tuple[str, ...]] = ("weight_packed", "weight_scale", "weight_global_scale", *_OF_ACTIVATIONS)
    marks: ClassVar[tuple[str, ...]] = ("weight_packed",)

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        """See ``Scheme.info``."""
        _check_packed(tensor, layer, _MXFP4, *EXPONENTS)
        return TensorInfo(tensor.shape, "mxfp4")

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        """See ``Scheme.read``."""
        rows = rows_of(tensor)
        exponents = layer.data("weight_scale").reshape(layer.tensors["weight_scale"][1].shape)
        if (bad := exponents > MOST_EXPONENT).any():
            at = int(bad.argmax())
            raise layer.error("weight_scale", f"value {at} is NaN or infinite, or makes a value so", at)
        blocks = layer.read("weight_packed").reshape(*exponents.shape, _MXFP4 // 2)
        return from_blocks_and_scales(np.ascontiguousarray(blocks[rows]), np.ascontiguousarray(exponents[rows]))


@dataclass(frozen=True, slots=True)
class CompressedNvfp4(CompressedMxfp4):
    """NVFP4, kept in bfloat16; see ``quantized_layers.Scheme``."""

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        """See ``Scheme.info``."""
        _check_packed(tensor, layer, _NVFP4, "F8_E4M3")
        layer.check_plain(tensor, next(iter(layer.tensors)), "weight_global_scale")
        layer.check("weight_global_scale", [(1,), (), (1, 1)], "F32")
        return TensorInfo(tensor.shape, "bf16", decoded_from="nvfp4")

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        """See ``Scheme.read``."""
        rows = rows_of(tensor)
        divisor = layer.floats("weight_global_scale").reshape(-1)
        if not abs(divisor[0]) >= np.finfo(np.float32).tiny:
            raise layer.error("weight_global_scale", f"is {divisor[0]:g}; scales are divided by it", 0)
        scales = E4M3[e4m3_codes(layer, "weight_scale")[rows]]
        with np.errstate(over="ignore"):
            scales /= divisor
        packed = layer.read("weight_packed")[rows]
        values: Array = np.empty(info.shape, np.uint16)
        for part in row_chunks(*info.shape):
            with np.errstate(over="ignore", invalid="ignore"):
                wide = E2M1[nibbles(packed[part])] * np.repeat(scales[part], _NVFP4, axis=1)
            values[part] = narrow(wide, "bf16")
            if ((values[part] & 0x7F80) == 0x7F80).any():
                raise layer.error("weight_global_scale", f"is {divisor[0]:g}, which makes values infinite", 0)
        return PackedWeight("bf16", info.shape, values)


def _check_packed(tensor: Tensor, layer: Layer, inputs: int, *dtypes: str) -> None:
    layer.check_plain(tensor, next(iter(layer.tensors)), "weight_packed", "weight_scale")
    n_out, n_in = tensor.hf.shape
    if n_in % inputs:
        raise layer.error("weight_packed", f"belongs to {n_in} inputs, which are no whole blocks of {inputs}")
    layer.check("weight_packed", (n_out, n_in // 2), "U8")
    layer.check("weight_scale", (n_out, n_in // inputs), *dtypes)
