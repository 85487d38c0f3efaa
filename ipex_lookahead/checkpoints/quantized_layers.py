"""Common parts of the schemes of quantized folders: a layer's tensors, and settings.

A layer quantized by GPTQ, AWQ, compressed-tensors or bitsandbytes has several tensors: codes, scales, and in some
schemes zero points and an order of inputs. Each scheme's file defines their names, shapes and meaning. Their values are
represented exactly: in a low-bit format if one fits (``quantized_groups.py``, ``quantized_floats.py``), else as floats
(``TensorInfo.decoded_from``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.hparams import FLOAT_ORIGINAL, Check, Source, shown
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.placed import run_of
from ipex_lookahead.checkpoints.safetensors_reader import DTYPE_BITS, FLOATS, SafetensorsFile, StoredTensor
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import first_not_finite, widen

Found = tuple[SafetensorsFile, StoredTensor]
Array = npt.NDArray[Any]

MAX_SCALE = float(np.finfo(np.float32).max) / 256
"""Largest number in scales and tables; its product with any 8-bit code is finite."""
_DTYPES: dict[str, type[np.generic]] = {
    "I8": np.int8, "U8": np.uint8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "F16": np.uint16, "BF16": np.uint16, "F32": np.float32,
}  # fmt: skip


class Scheme(ABC):
    """A quantization scheme of a folder.

    Attributes:
        name: the ``quant_method``.
        tensors: suffixes of a matrix's tensors, which are named MODULE.SUFFIX.
        marks: suffixes of which every quantized matrix has at least one.
    """

    name: ClassVar[str]
    tensors: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[str, ...]] = ()

    def parts(self, name: str, names: Collection[str]) -> dict[str, str]:
        """Return the tensors of the matrix ``name`` by suffix; {} if the matrix is not quantized."""
        module = name.removesuffix(".weight")
        if not any(f"{module}.{mark}" in names for mark in self.marks):
            return {}
        return {part: f"{module}.{part}" for part in self.tensors if f"{module}.{part}" in names}

    @abstractmethod
    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        """Return shape and format of the matrix; raise ModelFormatError if its tensors contradict the settings."""

    @abstractmethod
    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        """Read the matrix, given the result of :meth:`info`; raise ModelFormatError for invalid values."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The tensors of one quantized matrix, by suffix."""

    tensors: Mapping[str, Found]

    def __contains__(self, part: str) -> bool:
        return part in self.tensors

    def error(self, part: str, problem: str, index: int | None = None) -> ModelFormatError:
        """Return the error about a tensor, or about its element ``index``."""
        file, stored = self.tensors[part]
        at = stored.entry if index is None else stored.offset + index * DTYPE_BITS[stored.dtype] // 8
        return ModelFormatError(file.path, stored.name, at, problem)

    def check_plain(self, tensor: Tensor, part: str, *needed: str) -> None:
        """Raise unless the tensors ``needed`` are present in addition to ``part``, and belong to a single matrix."""
        if tensor.hf.layout != "plain" or tensor.hf.expert is not None:
            raise self.error(part, "holds all experts in one quantized tensor; only one tensor per expert is supported")
        for other in needed:
            if other not in self:
                raise self.error(part, f"has no {other}")

    def check_shape_tensor(self, part: str, shape: tuple[int, ...]) -> None:
        """Raise ModelFormatError unless the tensor ``part`` holds the two numbers ``shape``."""
        self.check(part, (2,), "I64", "I32")
        if (said := self.read(part).tolist()) != list(shape):
            raise self.error(part, f"is {said}, but the config implies {list(shape)}", 0)

    def kind(self, part: str) -> str:
        """Return the tensor's dtype in the file."""
        return self.tensors[part][1].dtype

    def check(self, part: str, shapes: tuple[int, ...] | Sequence[tuple[int, ...]], *dtypes: str) -> None:
        """Raise ModelFormatError unless the tensor has one of the dtypes and one of the shapes."""
        stored = self.tensors[part][1]
        allowed: Any = shapes if isinstance(shapes, list) else [shapes]
        if stored.dtype not in dtypes or stored.shape not in allowed:
            wanted = " or ".join(str(list(shape)) for shape in allowed)
            raise self.error(
                part,
                f"is {stored.dtype} {list(stored.shape)}; config and settings imply {' or '.join(dtypes)} {wanted}",
            )

    def read(self, part: str) -> Array:
        """Read the tensor, half floats as bits; raise ModelFormatError if the file was truncated."""
        file, stored = self.tensors[part]
        values: Array = np.empty(stored.shape, _DTYPES[stored.dtype])
        file.file.read_into(stored.offset, values, stored.name)
        return values

    def data(self, part: str) -> npt.NDArray[np.uint8]:
        """Read the tensor as bytes; raise ModelFormatError if the file was truncated."""
        file, stored = self.tensors[part]
        values: npt.NDArray[np.uint8] = np.empty(stored.nbytes, np.uint8)
        file.file.read_into(stored.offset, values, stored.name)
        return values

    def floats(self, part: str) -> npt.NDArray[np.float32]:
        """Read a float tensor as float32, exact.

        Raises:
            ModelFormatError: if a value is NaN, infinite or beyond ``MAX_SCALE``.
        """
        values, kind = self.read(part), FLOATS[self.kind(part)]
        if (bad := first_not_finite(values, kind)) is not None:
            raise self.error(part, f"value {bad} is NaN or infinite", bad)
        wide = widen(values, kind)
        if (far := np.abs(wide) > MAX_SCALE).any():
            at = int(far.argmax())
            raise self.error(part, f"value {at} is {wide.reshape(-1)[at]:g}; it must be at most {MAX_SCALE:g}", at)
        return wide


Rows = slice | npt.NDArray[np.intp]


def rows_of(tensor: Tensor) -> Rows:
    """Return the rows of the file's tensor that belong to the weight, which may be a part of a fused tensor."""
    run = run_of(tensor, tensor.hf)
    if isinstance(rows := run.rows, slice):
        return slice(run.first, run.first + run.span, run.step)
    return run.first + rows


_MAY_MATTER = re.compile(
    "act|adapt|asym|bias|bit|block|book|channel|clip|code|column|cut|delta|dense|double|dtype|dynamic|exclu|expert|"
    "extra|fold|format|fp|grid|group|hada|ignor|inver|kv|layer|layout|lora|mask|merg|method|mix|modul|nest|norm|offset|"
    "order|outlier|overrid|pack|perm|precision|prun|rank|residual|rot|row|scal|schem|shift|skip|smooth|spars|split|stat|"
    "stor|svd|swap|swiz|sym|target|tile|transf|transpos|type|vector|weight|zero"
)
"""Parts of words that may describe the meaning or selection of stored weights, or operations on them."""


def may_change_weights(key: str, value: Any) -> bool:
    """Return True if an unknown setting may change the meaning of weights.

    Quantizers record how they found their weights, which has no effect on the tensors, and names, dtypes and shapes of
    tensors are checked. A key is therefore ignored unless it, or a key inside its value, contains one of
    ``_MAY_MATTER``. null, [] and {} are always ignored.
    """
    if value is None or value in ([], {}):
        return False
    if _MAY_MATTER.search(key.lower()):
        return True
    if isinstance(value, dict):
        return any(may_change_weights(inner, one) for inner, one in value.items())
    return isinstance(value, list) and any(may_change_weights("", one) for one in value)


@dataclass(frozen=True, slots=True)
class Settings:
    """The keys of a ``quantization_config`` that a scheme knows. Other keys with a value other than null are refused.

    Attributes:
        used: key -> check.
        neutral: keys without effect on the meaning of weights (calibration, choice of kernels).
        refused: keys that must have their harmless values.
        provenance: True to ignore unknown keys that :func:`may_change_weights` considers as mere records (``iters``,
            ``provider``, ...).
    """

    used: Mapping[str, Check] = field(default_factory=dict)
    neutral: Collection[str] = ()
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    provenance: bool = False

    def read(self, raw: JsonObject, source: Source, scheme: str) -> dict[str, Any]:
        """Return the used keys, checked. Raises UnsupportedModelError or ModelFormatError."""
        found: dict[str, Any] = {}
        for key, value in raw.items():
            if key in self.used:
                if value is not None:
                    found[key] = self.used[key](source, key, value)
            elif key in self.refused:
                if self.refused[key].refuses(value):
                    raise unsupported(source, key, value, *self.refused[key].unless)
            elif key not in self.neutral and (may_change_weights(key, value) if self.provenance else value is not None):
                raise UnsupportedModelError(
                    f"{source.file}: {source.spelling(key)} is {shown(value)}; this key of {scheme} is unknown"
                    " and may change the meaning of weights",
                    hint=FLOAT_ORIGINAL,
                )
        return found


def unsupported(source: Source, key: str, value: Any, *allowed: Any) -> UnsupportedModelError:
    """Return the error for a valid setting that is not supported."""
    words = " or ".join(shown(one) for one in allowed)
    return UnsupportedModelError(
        f"{source.file}: {source.spelling(key)} is {shown(value)}; supported: {words}",
        hint=FLOAT_ORIGINAL,
    )


def choice(*words: Any) -> Check:
    """Return a check that raises UnsupportedModelError for all but the given values."""

    def check(source: Source, key: str, value: Any) -> Any:
        if not any(value == word and type(value) is type(word) for word in words):
            raise unsupported(source, key, value, *words)
        return value

    return check


def exclusions(source: Source, key: str, value: Any) -> None:
    """Check GPTQModel's settings per module: only exclusions (``-:PATTERN``) are supported.

    The excluded modules follow from the tensors.
    """
    if not isinstance(value, dict) or not all(pattern.startswith("-:") for pattern in value):
        raise unsupported(source, key, value, None, {})


def group_size(source: Source, key: str, value: Any) -> int:
    """Check the number of inputs per group: 1 to 65,536, or -1 for all."""
    if type(value) is not int or not (value == -1 or 1 <= value <= 1 << 16):
        raise source.error(key, f"is {shown(value)}; it must be a whole number from 1 to 65536, or -1")
    return value


def block_shape(source: Source, key: str, value: Any) -> tuple[int, int]:
    """Check the outputs and inputs per block: two whole numbers from 1 to 65,536."""
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and 1 <= n <= 1 << 16 for n in value):
        raise source.error(key, f"is {shown(value)}; it must be two whole numbers from 1 to 65536")
    return value[0], value[1]


AUTO_ROUND_NEUTRAL = frozenset({
    "act_data_type", "act_dynamic", "act_group_size", "act_sym", "enable_norm_bias_tuning", "quant_nontext_module",
    "scale_dtype", "to_quant_block_names",
})  # fmt: skip
AUTO_ROUND_REFUSED: Mapping[str, Refusal] = {
    "data_type": Refusal(unless=(None, "int")), "act_bits": Refusal(unless=(None, 16, 32)),
}  # fmt: skip
"""AutoRound's keys in the layouts that it exports."""

Reader = Callable[[JsonObject, Source], Scheme]
"""Function that creates the scheme from a ``quantization_config``."""
