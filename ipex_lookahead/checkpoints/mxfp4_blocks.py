"""MXFP4 weights of safetensors folders: ``NAME_blocks``, 32 four-bit codes each, and ``NAME_scales`` (gpt-oss)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.placed import Run, run_of
from ipex_lookahead.checkpoints.quantized_layers import Found
from ipex_lookahead.errors import LowBitFormatError, ModelFormatError
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.table import BLOCK_FORMATS


def scales_name(tensor: Tensor) -> str:
    """Return the name of the scales that belong to a weight's blocks."""
    return tensor.hf.name.removesuffix("_blocks") + "_scales"


def check_blocks(tensor: Tensor, blocks: Found, scales: Found) -> None:
    """Raise ModelFormatError unless both tensors are bytes of the shapes that the config implies."""
    if tensor.shape[1] % 32:
        file, stored = blocks
        raise ModelFormatError(
            file.path, tensor.hf.name, stored.entry,
            f"is MXFP4, in blocks of 32 inputs; the config implies {tensor.shape[1]} inputs",
        )  # fmt: skip
    wanted = ((blocks, tensor.hf.name, tensor.hf.shape), (scales, scales_name(tensor), tensor.hf.shape[:-1]))
    for (file, stored), name, shape in wanted:
        if stored.dtype != "U8" or stored.shape != shape:
            raise ModelFormatError(
                file.path, name, stored.entry,
                f"is {stored.dtype} {list(stored.shape)}; the config implies U8 {list(shape)}",
            )  # fmt: skip


def read_blocks(tensor: Tensor, blocks: Found, scales: Found) -> PackedWeight:
    """Read an expert's rows with their codes and exponents unchanged; temporarily takes several times their memory.

    Raises:
        ModelFormatError: if a scale is NaN or makes a value infinite, or a file was truncated meanwhile.
    """
    run = run_of(tensor, tensor.hf)
    exponents = _rows(scales, scales_name(tensor), run)
    weight = from_blocks_and_scales(_rows(blocks, tensor.hf.name, run), exponents)
    if (bad := BLOCK_FORMATS["mxfp4"].bad_scale("codes", weight.codes)) is not None:
        row, block = divmod(bad.index // (weight.codes.shape[1] // exponents.shape[1]), exponents.shape[1])
        at = (run.first + row * run.step) * exponents.shape[1] + block
        file, stored = scales
        raise ModelFormatError(file.path, scales_name(tensor), stored.offset + at, f"{bad.what} {at} {bad.problem}")
    return weight


def _rows(found: Found, name: str, run: Run) -> npt.NDArray[np.uint8]:
    """Read rows of a tensor of bytes [experts, rows, ...]; rows are numbered across experts."""
    file, stored = found
    rows: npt.NDArray[Any] = np.empty((run.span, *stored.shape[2:]), np.uint8)
    file.file.read_into(stored.offset + run.first * (rows.nbytes // run.span), rows, name)
    return np.ascontiguousarray(rows[:: run.step])


def from_blocks_and_scales(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> PackedWeight:
    """Return an ``mxfp4`` weight from the layout of gpt-oss's safetensors, in which neighboring inputs share a byte.

    Args:
        blocks: uint8 [n_out, n_in / 32, 16]; byte i of a block holds code 2 i in its low, 2 i + 1 in its high nibble.
        scales: uint8 [n_out, n_in / 32], the exponents.

    Raises:
        LowBitFormatError: if a shape or dtype differs.
    """
    if blocks.ndim != 3 or blocks.shape[2] != 16 or blocks.dtype != np.uint8 or 0 in blocks.shape:
        raise LowBitFormatError(
            f"blocks are {blocks.dtype} {list(blocks.shape)}; expected uint8 [n_out, n_in / 32, 16]"
        )
    if scales.shape != blocks.shape[:2] or scales.dtype != np.uint8:
        raise LowBitFormatError(
            f"scales are {scales.dtype} {list(scales.shape)}; expected uint8 {list(blocks.shape[:2])}"
        )
    codes = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(len(blocks), -1)
    return BLOCK_FORMATS["mxfp4"].matrix(codes, scales)
