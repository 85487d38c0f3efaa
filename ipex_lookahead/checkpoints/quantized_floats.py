"""8-bit float weights (e4m3) of quantized folders: w = code * scale, with one scale per block of rows and inputs.

``fp8_e4m3_fp32`` holds blocks of multiples of 64 inputs: its codes represent 2^-8 times e4m3's numbers, so the same
codes with 256 times the scale give the same product, rounded once. ``fp8_e4m3`` holds blocks of 32 inputs with binary16
scales. All other weights are decoded to float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.quantized_groups import is_half
from ipex_lookahead.checkpoints.quantized_layers import Array, Layer, Rows
from ipex_lookahead.checkpoints.safetensors_reader import FLOATS
from ipex_lookahead.formats.base import GROUP, PackedWeight
from ipex_lookahead.formats.codebooks import E4M3
from ipex_lookahead.formats.float_base import to_binary16
from ipex_lookahead.formats.table import BLOCK_FORMATS

E4M3_VALUES = np.array(E4M3, np.float32)
"""Values of e4m3's codes. Codes 127 and 255 are NaN in files and are refused before this table is used."""
_WIDE = BLOCK_FORMATS["fp8_e4m3_fp32"]
_BIAS = np.float32(256)
_MAX_SCALE = np.float32(2.0**112)
"""``fp8_e4m3_fp32`` multiplies scales by 256."""
EXPONENTS = ("F8_E8M0", "U8")
"""Dtypes of scales given as exponent bytes: 2^(byte - 127)."""


def e4m3_codes(layer: Layer, part: str) -> npt.NDArray[np.uint8]:
    """Return a tensor of F8_E4M3 as bytes; raise ModelFormatError for NaN."""
    codes = layer.data(part).reshape(layer.tensors[part][1].shape)
    if (bad := (codes & 127) == 127).any():
        at = int(bad.argmax())
        raise layer.error(part, f"value {at} is NaN", at)
    return codes


def powers(layer: Layer, part: str, most: int) -> npt.NDArray[np.float32]:
    """Return a tensor of exponents as powers of two; raise ModelFormatError for a byte beyond ``most`` (255 is NaN)."""
    exponents = layer.data(part).reshape(layer.tensors[part][1].shape)
    if (bad := exponents > most).any():
        at = int(bad.argmax())
        raise layer.error(part, f"value {at} is {exponents.reshape(-1)[at]}; exponents are from 0 to {most}", at)
    found: npt.NDArray[np.float32] = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return found


@dataclass(frozen=True, slots=True)
class FloatBlocks:
    """Sharing of scales: one per block of ``rows`` outputs and ``columns`` inputs; -1: all of them."""

    rows: int
    columns: int

    def shapes(self, n_out: int, n_in: int) -> Sequence[tuple[int, ...]]:
        """Return the allowed shapes of the tensor of scales."""
        if self.columns != -1:
            return [(-(-n_out // self.height(n_out)), -(-n_in // self.columns))]
        return [(n_out, 1), (n_out,)] if self.rows == 1 else [(), (1,), (1, 1)]

    def height(self, n_out: int) -> int:
        """Return the rows per block."""
        return n_out if self.rows == -1 else self.rows

    def width(self, n_in: int) -> int:
        """Return the inputs per block."""
        return n_in if self.columns == -1 else self.columns

    def info(self, tensor: Tensor, layer: Layer, weight: str, scales: str) -> TensorInfo:
        """Return the format of the matrix; for blocks of 32 inputs this reads the scales.

        Raises:
            ModelFormatError: if the tensors do not match the settings.
        """
        n_out, n_in = tensor.hf.shape
        layer.check(weight, (n_out, n_in), "F8_E4M3")
        layer.check(scales, self.shapes(n_out, n_in), *FLOATS, *EXPONENTS)
        width = self.width(n_in)
        if width % _WIDE.inputs == 0 or width >= n_in:
            return TensorInfo(tensor.shape, "fp8_e4m3_fp32")
        if width % GROUP == 0 and is_half(self._scales(layer, scales)):
            return TensorInfo(tensor.shape, "fp8_e4m3")
        return TensorInfo(tensor.shape, "fp32", decoded_from=f"fp8 e4m3, blocks of {width} inputs")

    def weight(self, info: TensorInfo, layer: Layer, weight: str, scales: str, rows: Rows) -> PackedWeight:
        """Read rows of the matrix in the format of :meth:`info`.

        Raises:
            ModelFormatError: if a value is NaN or infinite, or a scale makes it so.
        """
        codes = e4m3_codes(layer, weight)
        n_out, n_in = codes.shape
        numbers = self._scales(layer, scales)
        numbers = numbers.reshape(-1, 1 if self.columns == -1 else numbers.shape[-1])
        of_rows, of_inputs = np.arange(n_out)[rows] // self.height(n_out), np.arange(n_in) // self.width(n_in)
        codes = codes[rows]
        if info.format == "fp32":
            return PackedWeight("fp32", info.shape, E4M3_VALUES[codes] * numbers[np.ix_(of_rows, of_inputs)])
        if info.format == "fp8_e4m3_fp32":
            return _WIDE.matrix(codes, numbers[np.ix_(of_rows, of_inputs[:: _WIDE.inputs])] * _BIAS)
        return BLOCK_FORMATS["fp8_e4m3"].matrix(codes, to_binary16(numbers[np.ix_(of_rows, of_inputs[::GROUP])]))

    def _scales(self, layer: Layer, part: str) -> Array:
        if layer.kind(part) in EXPONENTS:
            return powers(layer, part, 127 + 112)
        found = layer.floats(part)
        if (far := np.abs(found) > _MAX_SCALE).any():
            at = int(far.argmax())
            raise layer.error(part, f"value {at} is {found.reshape(-1)[at]:g}; it must be at most {_MAX_SCALE:g}", at)
        return found
