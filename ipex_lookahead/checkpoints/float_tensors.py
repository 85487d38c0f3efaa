"""Float tensors of safetensors files: kept as they are, except that F64 becomes float32 and 8-bit floats get scales.

A matrix of F8_E4M3 or F8_E5M2 without scales becomes ``fp8_e4m3`` or ``fp8_e5m2`` with all scales 1, a vector becomes
bfloat16; both are exact. F64 is rounded to the nearest float32, as in transformers.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.hparams import FLOAT_ORIGINAL
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.placed import run_of, transposed_part, with_offset
from ipex_lookahead.checkpoints.quantized_layers import Found
from ipex_lookahead.checkpoints.safetensors_reader import DTYPE_BITS, FLOATS, SafetensorsFile, StoredTensor
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import first_not_finite, narrow, widen
from ipex_lookahead.formats.table import BLOCK_FORMATS

_EIGHT_BITS = {"F8_E4M3": BLOCK_FORMATS["fp8_e4m3"], "F8_E5M2": BLOCK_FORMATS["fp8_e5m2"]}
_MIN_NOT_FINITE = {"F8_E4M3": 0x7F, "F8_E5M2": 0x7C}
"""Smallest magnitude bits of NaN and infinity."""
READ = (*FLOATS, "F64", *_EIGHT_BITS)
"""The supported dtypes."""
WHOLE = ("I32", "I64")
"""Dtypes of token ids, which are read as float32."""
_CODES: dict[str, type[np.generic]] = {
    "F32": np.float32, "F16": np.uint16, "BF16": np.uint16, "F64": np.float64, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8,
    "I32": np.int32, "I64": np.int64,
}  # fmt: skip
_MAX_TOKEN = 1 << 24
"""float32 represents all whole numbers up to this one."""
_ONE = np.uint16(0x3C00)
_COMPARED = 1 << 20
"""Values per chunk when two tensors are compared."""


def float_info(dtype: str, shape: tuple[int, ...]) -> TensorInfo:
    """Return the shape and format that a tensor is read as; for unsupported dtypes the format is the dtype's name."""
    if dtype in _EIGHT_BITS:
        return TensorInfo(shape, _EIGHT_BITS[dtype].name if len(shape) == 2 else "bf16")
    if dtype in ("F64", *WHOLE):
        return TensorInfo(shape, "fp32", decoded_from=dtype)
    return TensorInfo(shape, FLOATS.get(dtype, dtype.lower()))


def read_float(file: SafetensorsFile, name: str, tensor: StoredTensor) -> PackedWeight:
    """Read a whole float tensor; raise ModelFormatError for NaN or infinity, or if the file was truncated meanwhile."""
    values: npt.NDArray[np.generic] = np.empty(tensor.shape, _CODES[tensor.dtype])
    file.file.read_into(tensor.offset, values, name)
    _check_finite(file, name, tensor.dtype, values, tensor.offset)
    return _weight(tensor.dtype, values)


def _read_part(file: SafetensorsFile, tensor: Tensor, stored: StoredTensor) -> PackedWeight:
    """Read rows of a float tensor, or columns of a transposed expert's entry."""
    place, kind = tensor.hf, _CODES[stored.dtype]
    if place.layout == "transposed":
        entry: npt.NDArray[Any] = np.empty(place.shape[-2:], kind)
        start = stored.offset + (place.expert or 0) * entry.nbytes
    else:
        run = run_of(tensor, place)
        entry = np.empty((run.span, *tensor.shape[1:]), kind)
        start = stored.offset + run.first * (entry.nbytes // run.span)
    file.file.read_into(start, entry, place.name)
    _check_finite(file, place.name, stored.dtype, entry, start)
    if place.layout == "transposed":
        return _weight(stored.dtype, transposed_part(tensor, place, entry))
    return _weight(stored.dtype, np.ascontiguousarray(entry[run.rows]))


def read_placed(file: SafetensorsFile, tensor: Tensor, stored: StoredTensor) -> PackedWeight:
    """Read the part of a float tensor that is a weight, with its offset applied. Raises as :func:`read_float`."""
    whole = tensor.hf.shape == tensor.shape and tensor.hf.layout != "transposed"
    weight = read_float(file, tensor.hf.name, stored) if whole else _read_part(file, tensor, stored)
    return with_offset(weight, tensor.hf.offset)


def _check_finite(file: SafetensorsFile, name: str, dtype: str, values: npt.NDArray[Any], start: int) -> None:
    """Raise ModelFormatError for NaN and infinity, for F64 beyond float32, and for values that are not token ids."""
    if dtype in WHOLE:
        if (wrong := (values < 0) | (values > _MAX_TOKEN)).any():
            at = int(wrong.argmax())
            raise ModelFormatError(
                file.path, name, start + at * values.itemsize, f"value {at} is {values.flat[at]}, not a token id"
            )
        return
    if dtype in FLOATS:
        bad = first_not_finite(values, FLOATS[dtype])
    else:
        wrong = values & 0x7F >= _MIN_NOT_FINITE[dtype] if dtype in _EIGHT_BITS else ~np.isfinite(_rounded(values))
        bad = int(wrong.argmax()) if wrong.any() else None
    if bad is not None:
        beyond = ", or beyond float32" if dtype == "F64" else ""
        raise ModelFormatError(
            file.path, name, start + bad * values.itemsize, f"value {bad} is NaN or infinite{beyond}"
        )


def _rounded(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def _weight(dtype: str, values: npt.NDArray[Any]) -> PackedWeight:
    """Convert finite values or codes to the format that :func:`float_info` names."""
    if dtype in FLOATS:
        return PackedWeight(FLOATS[dtype], values.shape, values)
    if dtype in ("F64", *WHOLE):
        return PackedWeight("fp32", values.shape, _rounded(values))
    target = _EIGHT_BITS[dtype]
    if values.ndim != 2:
        return PackedWeight("bf16", values.shape, narrow(np.array(target.table, np.float32)[values], "bf16"))
    n_out, n_in = values.shape
    return target.matrix(values, np.full((n_out, -(-n_in // target.inputs)), _ONE))


def same_values(one: Found, other: Found) -> bool:
    """Return True if two float tensors are equal in shape and values; reads only up to the first difference.

    Raises:
        ModelFormatError: if a file was truncated meanwhile.
    """
    if one[1].shape != other[1].shape or not {one[1].dtype, other[1].dtype} <= {*READ}:
        return False
    count = prod(one[1].shape)
    return all(_same_piece(one, other, first, min(count, first + _COMPARED)) for first in range(0, count, _COMPARED))


def _same_piece(one: Found, other: Found, first: int, last: int) -> bool:
    bits, other_bits = _piece(one, first, last), _piece(other, first, last)
    if one[1].dtype == other[1].dtype and np.array_equal(bits, other_bits):
        return True
    return np.array_equal(_wide(one[1].dtype, bits), _wide(other[1].dtype, other_bits))


def _wide(dtype: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if dtype in _EIGHT_BITS:
        numbers: npt.NDArray[np.float32] = np.array(_EIGHT_BITS[dtype].table, np.float32)[values]
        return numbers
    wide: npt.NDArray[Any] = widen(values, FLOATS[dtype]) if dtype in FLOATS else values
    return wide


def _piece(found: Found, first: int, last: int) -> npt.NDArray[np.generic]:
    file, stored = found
    values: npt.NDArray[np.generic] = np.empty(last - first, _CODES[stored.dtype])
    file.file.read_into(stored.offset + first * values.itemsize, values, stored.name)
    return values


def wrong_shape(file: SafetensorsFile, tensor: Tensor, stored: StoredTensor) -> ModelFormatError:
    """Return the error for a tensor with a shape other than the config implies."""
    problem = f"has shape {list(stored.shape)}, but the config implies {list(tensor.hf.shape)}"
    return ModelFormatError(file.path, tensor.hf.name, stored.entry, problem)


def check_kind(
    file: SafetensorsFile,
    name: str,
    tensor: StoredTensor,
    *,
    most_dimensions: int = 2,
    dtypes: Collection[str] = tuple(FLOATS),
    number: bool = False,
) -> None:
    """Refuse a tensor that is not a float vector or matrix (or, with ``number``, a scalar).

    Raises:
        UnsupportedModelError: if the dtype or the number of dimensions is not supported.
        ModelFormatError: if the tensor is empty.
    """
    if tensor.dtype not in dtypes:
        raise UnsupportedModelError(
            f"{file.path}: tensor {name} has dtype {tensor.dtype}; the supported dtypes are {', '.join(dtypes)}",
            hint="use the original float checkpoint",
        )
    if not (0 if number else 1) <= len(tensor.shape) <= most_dimensions:
        raise UnsupportedModelError(
            f"{file.path}: tensor {name} has shape {list(tensor.shape)}; vectors and matrices are supported"
        )
    if 0 in tensor.shape:
        raise ModelFormatError(file.path, name, tensor.entry, f"has shape {list(tensor.shape)}: it is empty")


def refuse_scales(file: SafetensorsFile, name: str, tensor: StoredTensor, scaled: Collection[str]) -> None:
    """Refuse an 8-bit tensor with scales that the quantization settings do not describe: its values would be wrong.

    Args:
        file: the file of the tensor.
        name: name of the tensor.
        tensor: its entry.
        scaled: result of :func:`scaled_names`.

    Raises:
        UnsupportedModelError: if there are such scales.
    """
    if DTYPE_BITS[tensor.dtype] == 8 and (name in scaled or name.removesuffix(".weight") in scaled):
        raise UnsupportedModelError(
            f"{file.path}: tensor {name} is {tensor.dtype} with a tensor of scales, but quantization_config describes"
            " no supported scheme for it",
            hint=FLOAT_ORIGINAL,
        )


def scaled_names(names: Collection[str]) -> set[str]:
    """Return the names of tensors and modules with scales: of NAME.weight_scale_inv, NAME.scale, NAME_scale, ..."""
    return {name[: name.rindex("scale")].rstrip("._") for name in names if "scale" in name}
