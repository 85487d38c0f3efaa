"""What the formats that came first hold, in plain numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats import dequantize
from ipex_lookahead.formats.base import PackedWeight


def values_of(weight: PackedWeight) -> npt.NDArray[np.float32]:
    """The float32 values of a packed weight, in plain numpy from the description in formats/base.py."""
    if weight.format == "fp32":
        return weight.codes.astype(np.float32)
    if weight.format == "fp16":
        return weight.codes.view(np.float16).astype(np.float32)
    if weight.format == "bf16":
        return (weight.codes.astype(np.uint32) << 16).view(np.float32)
    if weight.scales is None:  # blocks as the file has them
        return dequantize(weight)
    assert weight.scales is not None
    rows, columns = weight.shape
    scales = weight.scales.view(np.float16).astype(np.float32)[:, :, None]
    if weight.format == "sym_int8":
        return (scales * weight.codes.reshape(rows, -1, 32).astype(np.float32)).reshape(rows, columns)
    nibbles = weight.codes.reshape(rows, -1, 16)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).astype(np.float32)
    if weight.format == "sym_int4":
        return (scales * (codes - 8)).reshape(rows, columns)
    assert weight.format == "asym_int4"
    assert weight.minimums is not None
    return (scales * codes + weight.minimums.view(np.float16).astype(np.float32)[:, :, None]).reshape(rows, columns)
