"""Floats of eight bits (e4m3) in quantised folders: w = code * scale, a scale for each block of rows and inputs.

``fp8_e4m3_fp32`` holds that for blocks of whole 64s of inputs: its codes are 2^-8 times e4m3's numbers, so a file's
scale times 256 beside the same codes stands for the same product, rounded once. ``fp8_e4m3`` holds it for 32 where the
scales are binary16 numbers. What neither holds is kept as float32.
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
from ipex_lookahead.formats import fp8_e4m3, fp8_e4m3_fp32
from ipex_lookahead.formats.base import GROUP, PackedWeight
from ipex_lookahead.formats.float_base import to_binary16
from ipex_lookahead.formats.float_scales import INPUTS, packed
from ipex_lookahead.formats.search import Parts

E4M3 = np.array(fp8_e4m3.TABLE, np.float32)
"""What e4m3's codes stand for; 127 and 255 are NaN in files, and refused before."""
_BIAS = np.float32(256)
_MOST = np.float32(2.0**112)
"""The largest scale: ``fp8_e4m3_fp32`` takes 256 times as much."""
EXPONENTS = ("F8_E8M0", "U8")
"""Dtypes of scales that are a byte of exponent: 2^(byte - 127)."""


def e4m3_codes(layer: Layer, part: str) -> npt.NDArray[np.uint8]:
    """A tensor of F8_E4M3 as its bytes. Raises ModelFormatError for NaN."""
    codes = layer.data(part).reshape(layer.tensors[part][1].shape)
    if (bad := (codes & 127) == 127).any():
        at = int(bad.argmax())
        raise layer.error(part, f"value {at} is NaN", at)
    return codes


def powers(layer: Layer, part: str, most: int) -> npt.NDArray[np.float32]:
    """A tensor of exponents as the powers of two that they stand for.

    Raises ModelFormatError for a byte beyond ``most``; 255 is NaN.
    """
    exponents = layer.data(part).reshape(layer.tensors[part][1].shape)
    if (bad := exponents > most).any():
        at = int(bad.argmax())
        raise layer.error(part, f"value {at} is {exponents.reshape(-1)[at]}; exponents are from 0 to {most}", at)
    found: npt.NDArray[np.float32] = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return found


@dataclass(frozen=True, slots=True)
class FloatBlocks:
    """How scales are shared: ``rows`` outputs times ``columns`` inputs have one; -1: all of them."""

    rows: int
    columns: int

    def shapes(self, n_out: int, n_in: int) -> Sequence[tuple[int, ...]]:
        """What the tensor of scales may look like."""
        if self.columns != -1:
            return [(-(-n_out // self.height(n_out)), -(-n_in // self.columns))]
        return [(n_out, 1), (n_out,)] if self.rows == 1 else [(), (1,), (1, 1)]

    def height(self, n_out: int) -> int:
        """Rows of a block."""
        return n_out if self.rows == -1 else self.rows

    def width(self, n_in: int) -> int:
        """Inputs of a block."""
        return n_in if self.columns == -1 else self.columns

    def info(self, tensor: Tensor, layer: Layer, weight: str, scales: str) -> TensorInfo:
        """What holds the matrix. Reads the scales where blocks are of 32 inputs.

        Raises ModelFormatError where the tensors are not what the settings say.
        """
        n_out, n_in = tensor.hf.shape
        layer.check(weight, (n_out, n_in), "F8_E4M3")
        layer.check(scales, self.shapes(n_out, n_in), *FLOATS, *EXPONENTS)
        width = self.width(n_in)
        if width % INPUTS == 0 or width >= n_in:
            return TensorInfo(tensor.shape, "fp8_e4m3_fp32")
        if width % GROUP == 0 and is_half(self._scales(layer, scales)):
            return TensorInfo(tensor.shape, "fp8_e4m3")
        return TensorInfo(tensor.shape, "fp32", decoded_from=f"fp8 e4m3, blocks of {width} inputs")

    def weight(self, info: TensorInfo, layer: Layer, weight: str, scales: str, rows: Rows) -> PackedWeight:
        """The rows of the matrix as :meth:`info` says.

        Raises ModelFormatError for NaN, infinity, and a scale that makes a value so.
        """
        codes = e4m3_codes(layer, weight)
        n_out, n_in = codes.shape
        numbers = self._scales(layer, scales)
        numbers = numbers.reshape(-1, 1 if self.columns == -1 else numbers.shape[-1])
        of_rows, of_inputs = np.arange(n_out)[rows] // self.height(n_out), np.arange(n_in) // self.width(n_in)
        codes = codes[rows]
        if info.format == "fp32":
            return PackedWeight("fp32", info.shape, E4M3[codes] * numbers[np.ix_(of_rows, of_inputs)])
        if info.format == "fp8_e4m3_fp32":
            return packed(fp8_e4m3_fp32.FORMAT, codes, numbers[np.ix_(of_rows, of_inputs[::INPUTS])] * _BIAS)
        blocks = np.pad(codes, ((0, 0), (0, -n_in % GROUP))).reshape(len(codes), -1, GROUP)
        halves = to_binary16(numbers[np.ix_(of_rows, of_inputs[::GROUP])])
        records = fp8_e4m3.FORMAT.pack(Parts(blocks, halves), n_in).view(np.uint8).reshape(len(codes), -1)
        return PackedWeight("fp8_e4m3", info.shape, records)

    def _scales(self, layer: Layer, part: str) -> Array:
        if layer.kind(part) in EXPONENTS:
            return powers(layer, part, 127 + 112)
        found = layer.floats(part)
        if (far := np.abs(found) > _MOST).any():
            at = int(far.argmax())
            raise layer.error(part, f"value {at} is {found.reshape(-1)[at]:g}; it must be at most {_MOST:g}", at)
        return found
