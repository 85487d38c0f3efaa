"""compressed-tensors (llm-compressor) folders with float weights: fp8, NVFP4 and MXFP4.

Tensors of a layer ``NAME`` in fp8 ("float-quantized", "naive-quantized", "mxfp8-quantized"):
  NAME.weight               F8_E4M3 [n_out, n_in]
  NAME.weight_scale         [1], [n_out, 1], [n_out, groups], or one number per block of rows and inputs; exponent bytes
                            in mxfp8
Tensors with four bits ("nvfp4-pack-quantized", "mxfp4-pack-quantized"), two e2m1 codes per byte, low nibble first:
  NAME.weight_packed        U8 [n_out, n_in / 2]
  NAME.weight_scale         NVFP4: F8_E4M3 [n_out, n_in / 16]; MXFP4: exponent bytes, U8 [n_out, n_in / 32]
  NAME.weight_global_scale  NVFP4: F32 [1]

w = code * scale; in NVFP4 w = code * (scale / global scale) in float32, rounded to bfloat16 as the library does it.
Activation scales (``input_scale``, ``input_global_scale``) are ignored: activations stay floats here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.mxfp4_blocks import from_blocks_and_scales
from ipex_lookahead.checkpoints.quantized_floats import E4M3_VALUES, EXPONENTS, FloatBlocks, e4m3_codes
from ipex_lookahead.checkpoints.quantized_groups import nibbles
from ipex_lookahead.checkpoints.quantized_layers import Array, Layer, Scheme, rows_of
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import MAX_EXPONENT
from ipex_lookahead.formats.codebooks import E2M1
from ipex_lookahead.formats.float_base import narrow
from ipex_lookahead.formats.groups import row_chunks

NAME = "compressed-tensors"
E2M1_VALUES = np.array(E2M1, np.float32)
_NVFP4, _MXFP4 = 16, 32
"""Inputs that share a scale."""
_OF_ACTIVATIONS = ("input_scale", "input_zero_point", "input_global_scale", "weight_shape")


@dataclass(frozen=True, slots=True)
class CompressedFp8(Scheme):
    """fp8 weights."""

    blocks: FloatBlocks
    name: ClassVar[str] = NAME
    tensors: ClassVar[tuple[str, ...]] = ("weight", "weight_scale", *_OF_ACTIVATIONS)
    marks: ClassVar[tuple[str, ...]] = ("weight_scale",)

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        layer.check_plain(tensor, next(iter(layer.tensors)), "weight", "weight_scale")
        return self.blocks.info(tensor, layer, "weight", "weight_scale")

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        return self.blocks.weight(info, layer, "weight", "weight_scale", rows_of(tensor))


@dataclass(frozen=True, slots=True)
class CompressedMxfp4(Scheme):
    """MXFP4 weights, kept as they are."""

    name: ClassVar[str] = NAME
    tensors: ClassVar[tuple[str, ...]] = ("weight_packed", "weight_scale", "weight_global_scale", *_OF_ACTIVATIONS)
    marks: ClassVar[tuple[str, ...]] = ("weight_packed",)

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        _check_packed(tensor, layer, _MXFP4, *EXPONENTS)
        return TensorInfo(tensor.shape, "mxfp4")

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        rows = rows_of(tensor)
        exponents = layer.data("weight_scale").reshape(layer.tensors["weight_scale"][1].shape)
        if (bad := exponents > MAX_EXPONENT).any():
            at = int(bad.argmax())
            raise layer.error("weight_scale", f"value {at} is NaN or infinite, or makes a value so", at)
        blocks = layer.read("weight_packed").reshape(*exponents.shape, _MXFP4 // 2)
        return from_blocks_and_scales(np.ascontiguousarray(blocks[rows]), np.ascontiguousarray(exponents[rows]))


@dataclass(frozen=True, slots=True)
class CompressedNvfp4(CompressedMxfp4):
    """NVFP4 weights, converted to bfloat16."""

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        _check_packed(tensor, layer, _NVFP4, "F8_E4M3")
        layer.check_plain(tensor, next(iter(layer.tensors)), "weight_global_scale")
        layer.check("weight_global_scale", [(1,), (), (1, 1)], "F32")
        return TensorInfo(tensor.shape, "bf16", decoded_from="nvfp4")

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        rows = rows_of(tensor)
        divisor = layer.floats("weight_global_scale").reshape(-1)
        if not abs(divisor[0]) >= np.finfo(np.float32).tiny:
            raise layer.error(
                "weight_global_scale", f"is {divisor[0]:g}; scales are divided by it, so it must not be 0", 0
            )
        scales = E4M3_VALUES[e4m3_codes(layer, "weight_scale")[rows]]
        with np.errstate(over="ignore"):
            scales /= divisor
        packed = layer.read("weight_packed")[rows]
        values: Array = np.empty(info.shape, np.uint16)
        for part in row_chunks(*info.shape):
            with np.errstate(over="ignore", invalid="ignore"):
                wide = E2M1_VALUES[nibbles(packed[part])] * np.repeat(scales[part], _NVFP4, axis=1)
            values[part] = narrow(wide, "bf16")
            if ((values[part] & 0x7F80) == 0x7F80).any():
                raise layer.error("weight_global_scale", f"is {divisor[0]:g}, which makes values infinite", 0)
        return PackedWeight("bf16", info.shape, values)


def _check_packed(tensor: Tensor, layer: Layer, inputs: int, *dtypes: str) -> None:
    layer.check_plain(tensor, next(iter(layer.tensors)), "weight_packed", "weight_scale")
    n_out, n_in = tensor.hf.shape
    if n_in % inputs:
        raise layer.error("weight_packed", f"has {n_in} inputs; expected a multiple of the block size {inputs}")
    layer.check("weight_packed", (n_out, n_in // 2), "U8")
    layer.check("weight_scale", (n_out, n_in // inputs), *dtypes)
