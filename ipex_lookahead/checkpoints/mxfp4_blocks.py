"""Weights that a folder holds in MXFP4: ``NAME_blocks``, 32 codes of four bits each, and ``NAME_scales`` (gpt-oss)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.placed import Run, run_of
from ipex_lookahead.checkpoints.safetensors_reader import SafetensorsFile, StoredTensor
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.formats import get_format
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.mxfp4 import from_blocks_and_scales

Found = tuple[SafetensorsFile, StoredTensor]


def scales_name(tensor: Tensor) -> str:
    """The name of the tensor that holds the scales of a weight whose place is its blocks."""
    return tensor.hf.name.removesuffix("_blocks") + "_scales"


def check_blocks(tensor: Tensor, blocks: Found, scales: Found) -> None:
    """Raise ModelFormatError where the two tensors are not bytes of the shapes that the config implies."""
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
    """An expert's rows, codes and exponents as they are; takes the weight's memory a few times.

    Raises ModelFormatError for a scale that is NaN or makes a value infinite, and if a file has been cut meanwhile.
    """
    run = run_of(tensor, tensor.hf)
    exponents = _rows(scales, scales_name(tensor), run)
    weight = from_blocks_and_scales(_rows(blocks, tensor.hf.name, run), exponents)
    if (bad := get_format("mxfp4").bad_scale("codes", weight.codes)) is not None:
        row, block = divmod(bad.index // (weight.codes.shape[1] // exponents.shape[1]), exponents.shape[1])
        at = (run.first + row * run.step) * exponents.shape[1] + block
        file, stored = scales
        raise ModelFormatError(file.path, scales_name(tensor), stored.offset + at, f"{bad.what} {at} {bad.problem}")
    return weight


def _rows(found: Found, name: str, run: Run) -> npt.NDArray[np.uint8]:
    """Rows of a tensor of bytes [experts, rows, ...], those of all experts counted through."""
    file, stored = found
    rows: npt.NDArray[Any] = np.empty((run.span, *stored.shape[2:]), np.uint8)
    file.file.read_into(stored.offset + run.first * (rows.nbytes // run.span), rows, name)
    return np.ascontiguousarray(rows[:: run.step])
