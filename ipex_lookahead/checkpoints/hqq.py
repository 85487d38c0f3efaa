"""Checkpoints of HQQ (github.com/mobiusml/hqq), as transformers saves them in safetensors.

A matrix is taken as rows of ``group_size`` inputs (``axis`` 1), or as so many rows (``axis`` 0); its codes are packed
along the first dimension: with b bits, the first of 8 / b equal parts of the rows lies in the highest bits of a byte.
Of 3 bits ten parts lie in a word of 32 bits, the last of them filled up with zeros.
  NAME.W_q    U8 [rows / (8 / b), columns], of 3 bits I32 [ceil(rows / 10), columns]
  NAME.scale  [rows, 1], or [1, columns] along axis 0; so is NAME.zero, which need not be whole
  NAME.nbits, group_size, axis  I32 []; NAME.shape  I64 [2]; and others that say how it was made

w = (code - zero) * scale. The library rounds both operations to the dtype of the scales: in that format such a matrix
is kept. Where zeros are whole and groups lie in rows, integer formats hold the product before it is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.hparams import Source, shown
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.quantized_groups import Grouped
from ipex_lookahead.checkpoints.quantized_layers import (
    Array,
    Layer,
    Scheme,
    Settings,
    rows_of,
)
from ipex_lookahead.checkpoints.safetensors_reader import FLOATS
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import first_not_finite, narrow, widen

_SETTINGS = Settings(
    used={"quant_config": lambda source, key, value: value},
    neutral={"skip_modules"},
    refused={"quant_method": Refusal(unless=("hqq",))},
)
_NUMBERS = ("W_q", "scale", "zero", "shape", "nbits", "group_size", "axis")
_OFF = ("quant_scale", "quant_zero", "view_as_float")
"""What must be 0: scales and zeros that are quantised themselves, codes that lie in the file as floats."""
_NOTES = (
    "channel_wise", "compute_dtype", "encoded_state_dict", "offload_meta", "optimize", "packing", "round_zero",
    "stores_quant_config", "unpack_view_dtype",
)  # fmt: skip
_A_WORD = {1: 8, 2: 4, 3: 10, 4: 2, 8: 1}
"""Bits -> codes in an element of W_q."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a layer's own tensors say of it."""

    bits: int
    group: int
    axis: int

    def rows(self, values: int) -> int:
        """Rows of the matrix as it was grouped."""
        return values // self.group if self.axis == 1 else self.group


@dataclass(frozen=True, slots=True)
class Hqq(Scheme):
    """The scheme; see ``quantized_layers.Scheme``."""

    name: ClassVar[str] = "hqq"
    tensors: ClassVar[tuple[str, ...]] = (*_NUMBERS, *_OFF, *_NOTES)
    marks: ClassVar[tuple[str, ...]] = ("W_q",)

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        """See ``Scheme.info``. Reads scales and zeros."""
        said = self._check(tensor, layer)
        n_in = tensor.hf.shape[1]
        dtype = FLOATS[layer.kind("scale")]
        zeros = layer.floats("zero")
        if said.axis == 0 or n_in % said.group or said.bits == 1:
            why = f"int{said.bits}, groups that are not of a row's inputs" if said.bits > 1 else "int1"
        elif not ((zeros >= 0) & (zeros <= 1 << said.bits) & (np.rint(zeros) == zeros)).all():
            why = f"int{said.bits}, zeros that are not whole"
        else:
            held = Grouped(said.bits, said.group, symmetric=False).info_of(tensor, layer, "scale")
            if not held.decoded_from:
                return held
            why = held.decoded_from
        return TensorInfo(tensor.shape, dtype, decoded_from=why)

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        """See ``Scheme.read``."""
        said, shape, rows = self._check(tensor, layer), tensor.hf.shape, rows_of(tensor)
        codes = _codes(layer.read("W_q"), said.bits)[: said.rows(shape[0] * shape[1])]
        scales, zeros = layer.floats("scale"), layer.floats("zero")
        if info.decoded_from:
            values = _decoded(codes, scales, zeros, info.format)
            if (bad := first_not_finite(values, info.format)) is not None:
                raise layer.error("scale", f"makes value {bad} of the matrix infinite in {info.format}", 0)
            return PackedWeight(info.format, info.shape, np.ascontiguousarray(values.reshape(shape)[rows]))
        of_rows = (shape[0], -1)
        grouped = Grouped(said.bits, said.group, symmetric=False)
        return grouped.weight(
            info, codes.reshape(shape)[rows], scales.reshape(of_rows)[rows], zeros.reshape(of_rows)[rows]
        )

    def _check(self, tensor: Tensor, layer: Layer) -> _Meaning:
        layer.check_plain(tensor, "W_q", *_NUMBERS)
        said = _Meaning(*(_whole(layer, part) for part in ("nbits", "group_size", "axis")))
        n_out, n_in = tensor.hf.shape
        values = n_out * n_in
        if said.bits not in _A_WORD:
            raise layer.error("nbits", f"is {said.bits}; bits are {', '.join(map(str, _A_WORD))}", 0)
        if said.axis not in (0, 1):
            raise layer.error("axis", f"is {said.axis}; it must be 0 or 1", 0)
        if said.group < 1 or values % said.group:
            raise layer.error("group_size", f"is {said.group}, which does not divide {values} values", 0)
        for part in _OFF:
            if part in layer and layer.data(part).any():
                raise layer.error(part, "is not 0, and such codes or scales are not read", 0)
        layer.check_shape_tensor("shape", (n_out, n_in))
        rows, a_word = said.rows(values), _A_WORD[said.bits]
        if rows % a_word and said.bits != 3:
            raise layer.error("W_q", f"belongs to {rows} rows of groups, which are no whole words of {a_word} codes")
        layer.check("W_q", (-(-rows // a_word), values // rows), "I32" if said.bits == 3 else "U8")
        for part in ("scale", "zero"):
            layer.check(part, (rows, 1) if said.axis == 1 else (1, values // rows), layer.kind("scale"))
        if layer.kind("scale") not in FLOATS:
            raise layer.error("scale", f"is {layer.kind('scale')}; it must be {', '.join(FLOATS)}")
        return said


def _whole(layer: Layer, part: str) -> int:
    layer.check(part, [(), (1,)], "I32", "I64")
    return int(layer.read(part).reshape(-1)[0])


def _codes(words: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Words [n, columns] to codes [n * codes in a word, columns]: the first part of the rows in the highest bits."""
    top, mask = (27 if bits == 3 else 8 - bits), (1 << bits) - 1
    shifts = range(top, -1, -bits)
    return np.concatenate([(words >> shift & mask).astype(np.uint8) for shift in shifts])


def _decoded(codes: npt.NDArray[np.uint8], scales: Array, zeros: Array, form: str) -> npt.NDArray[Any]:
    """(code - zero) * scale, each operation rounded to the format; bits of it. float32 holds both before rounding."""
    with np.errstate(over="ignore"):
        less = widen(narrow(codes.astype(np.float32) - zeros, form), form)
        return narrow(less * scales, form)


def hqq(raw: JsonObject, source: Source) -> Hqq:
    """The scheme that a ``quantization_config`` describes. Raises UnsupportedModelError or ModelFormatError."""
    settings = _SETTINGS.read(raw, source, "hqq").get("quant_config")
    if settings is not None and not isinstance(settings, JsonObject):
        raise source.error("quant_config", f"is {shown(settings)}; it must be an object")
    return Hqq()
