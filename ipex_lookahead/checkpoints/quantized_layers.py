"""What the schemes of quantised folders have in common: a layer's tensors, and settings.

A layer that GPTQ, AWQ, compressed-tensors or bitsandbytes has quantised lies in several tensors: codes, scales, perhaps
zero points and an order of inputs. A scheme's file knows their names, shapes and meaning; the values that these define
are kept exactly: in a low-bit format where one holds them (``quantized_groups.py``, ``quantized_floats.py``), else as
floats, which ``TensorInfo.decoded_from`` says.
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

LARGEST = float(np.finfo(np.float32).max) / 256
"""The largest number beside codes: times any of them it is still one."""
_DTYPES: dict[str, type[np.generic]] = {
    "I8": np.int8, "U8": np.uint8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "F16": np.uint16, "BF16": np.uint16, "F32": np.float32,
}  # fmt: skip


class Scheme(ABC):
    """A way in which a folder's matrices are quantised.

    Attributes:
        name: its ``quant_method``.
        tensors: what may be there of a matrix: its tensors are called MODULE.PART.
        marks: those of ``tensors`` of which a quantised matrix has one.
    """

    name: ClassVar[str]
    tensors: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[str, ...]] = ()

    def parts(self, name: str, names: Collection[str]) -> dict[str, str]:
        """The tensors of the matrix ``name``: what each is -> its name; {} for a matrix that is not quantised."""
        module = name.removesuffix(".weight")
        if not any(f"{module}.{mark}" in names for mark in self.marks):
            return {}
        return {part: f"{module}.{part}" for part in self.tensors if f"{module}.{part}" in names}

    @abstractmethod
    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        """What the matrix will be. Raises ModelFormatError where its tensors are not what the settings say."""

    @abstractmethod
    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        """The matrix, ``info`` being what :meth:`info` gives. Raises ModelFormatError for values that cannot be."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The tensors of one quantised matrix, by what they are."""

    tensors: Mapping[str, Found]

    def __contains__(self, part: str) -> bool:
        """Whether there is such a tensor."""
        return part in self.tensors

    def error(self, part: str, problem: str, index: int | None = None) -> ModelFormatError:
        """The error about a tensor, or about element ``index`` of it."""
        file, stored = self.tensors[part]
        at = stored.entry if index is None else stored.offset + index * DTYPE_BITS[stored.dtype] // 8
        return ModelFormatError(file.path, stored.name, at, problem)

    def check_plain(self, tensor: Tensor, part: str, *needed: str) -> None:
        """Raise unless the tensors ``needed`` are there beside ``part``, and of one matrix, inputs after outputs."""
        if tensor.hf.layout != "plain" or tensor.hf.expert is not None:
            raise self.error(
                part, "is a quantised tensor of all experts; they are read where each is a layer of its own"
            )
        for other in needed:
            if other not in self:
                raise self.error(part, f"is there without {other}")

    def check_shape_tensor(self, part: str, shape: tuple[int, ...]) -> None:
        """Raise ModelFormatError unless the tensor ``part`` holds the two numbers ``shape``."""
        self.check(part, (2,), "I64", "I32")
        if (said := self.read(part).tolist()) != list(shape):
            raise self.error(part, f"is {said}, but the config implies {list(shape)}", 0)

    def kind(self, part: str) -> str:
        """The tensor's dtype as the file has it."""
        return self.tensors[part][1].dtype

    def check(self, part: str, shapes: tuple[int, ...] | Sequence[tuple[int, ...]], *dtypes: str) -> None:
        """Raise ModelFormatError unless the tensor has one of the dtypes and (one of) the shapes."""
        stored = self.tensors[part][1]
        allowed: Any = shapes if isinstance(shapes, list) else [shapes]
        if stored.dtype not in dtypes or stored.shape not in allowed:
            wanted = " or ".join(str(list(shape)) for shape in allowed)
            raise self.error(
                part,
                f"is {stored.dtype} {list(stored.shape)}; config and settings imply {' or '.join(dtypes)} {wanted}",
            )

    def read(self, part: str) -> Array:
        """The tensor's elements; of half floats the bits. Raises ModelFormatError where the file has been cut."""
        file, stored = self.tensors[part]
        values: Array = np.empty(stored.shape, _DTYPES[stored.dtype])
        file.file.read_into(stored.offset, values, stored.name)
        return values

    def data(self, part: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, of whatever dtype. Raises ModelFormatError where the file has been cut."""
        file, stored = self.tensors[part]
        values: npt.NDArray[np.uint8] = np.empty(stored.nbytes, np.uint8)
        file.file.read_into(stored.offset, values, stored.name)
        return values

    def floats(self, part: str) -> npt.NDArray[np.float32]:
        """A float tensor as float32 (exact).

        Raises ModelFormatError for NaN, infinity, and what a code of eight bits would make infinite.
        """
        values, kind = self.read(part), FLOATS[self.kind(part)]
        if (bad := first_not_finite(values, kind)) is not None:
            raise self.error(part, f"value {bad} is NaN or infinite", bad)
        wide = widen(values, kind)
        if (far := np.abs(wide) > LARGEST).any():
            at = int(far.argmax())
            raise self.error(part, f"value {at} is {wide.reshape(-1)[at]:g}; it must be at most {LARGEST:g}", at)
        return wide


Rows = slice | npt.NDArray[np.intp]


def rows_of(tensor: Tensor) -> Rows:
    """Which of the file's rows are this weight: a fused tensor holds several weights' rows."""
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
"""Parts of words for what stored weights are, which of them are meant, and what is done to them or beside them."""


def may_matter(key: str, value: Any) -> bool:
    """Whether a setting that nobody here has heard of may change what weights mean.

    A program may note whatever it likes of how it found its weights, and what was found is what lies in the tensors,
    whose names, dtypes and shapes are checked. So a key is taken for a note unless it, or one inside its value, has a
    word of ``_MAY_MATTER`` in it. null, [] and {} say nothing.
    """
    if value is None or value in ([], {}):
        return False
    if _MAY_MATTER.search(key.lower()):
        return True
    if isinstance(value, dict):
        return any(may_matter(inner, one) for inner, one in value.items())
    return isinstance(value, list) and any(may_matter("", one) for one in value)


@dataclass(frozen=True, slots=True)
class Settings:
    """The keys of a ``quantization_config`` that a scheme knows.

    Any other that is not null is refused, with its value, but for words of provenance.

    Attributes:
        used: key -> check.
        neutral: keys that say how the weights were found or which kernel is to run, not what they are.
        refused: keys that must be at their harmless values.
        provenance: whether keys that nobody here has heard of may say how the weights were found (``iters``,
            ``provider``, ...): those without effect are passed over, see :func:`may_matter`.
    """

    used: Mapping[str, Check] = field(default_factory=dict)
    neutral: Collection[str] = ()
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    provenance: bool = False

    def read(self, raw: JsonObject, source: Source, scheme: str) -> dict[str, Any]:
        """The used keys, checked. Raises UnsupportedModelError or ModelFormatError."""
        found: dict[str, Any] = {}
        for key, value in raw.items():
            if key in self.used:
                if value is not None:
                    found[key] = self.used[key](source, key, value)
            elif key in self.refused:
                if self.refused[key].refuses(value):
                    raise unsupported(source, key, value, *self.refused[key].unless)
            elif key not in self.neutral and (may_matter(key, value) if self.provenance else value is not None):
                raise UnsupportedModelError(
                    f"{source.file}: {source.spelling(key)} is {shown(value)}; this key of {scheme} is not known here,"
                    " and it may change what weights mean",
                    hint=FLOAT_ORIGINAL,
                )
        return found


def unsupported(source: Source, key: str, value: Any, *allowed: Any) -> UnsupportedModelError:
    """The error for a setting that is well formed and not read."""
    words = " or ".join(shown(one) for one in allowed)
    return UnsupportedModelError(
        f"{source.file}: {source.spelling(key)} is {shown(value)}; what is read is {words}",
        hint=FLOAT_ORIGINAL,
    )


def choice(*words: Any) -> Check:
    """A check that refuses, as what is not read, all but a few values."""

    def check(source: Source, key: str, value: Any) -> Any:
        if not any(value == word and type(value) is type(word) for word in words):
            raise unsupported(source, key, value, *words)
        return value

    return check


def exclusions(source: Source, key: str, value: Any) -> None:
    """A check for GPTQModel's settings by module: some may be left as they were (``-:PATTERN``), none be otherwise.

    Which those are follows from the tensors.
    """
    if not isinstance(value, dict) or not all(pattern.startswith("-:") for pattern in value):
        raise unsupported(source, key, value, None, {})


def group_size(source: Source, key: str, value: Any) -> int:
    """A check for inputs in a group: 1 to 65,536, or -1 for all."""
    if type(value) is not int or not (value == -1 or 1 <= value <= 1 << 16):
        raise source.error(key, f"is {shown(value)}; it must be a whole number from 1 to 65536, or -1")
    return value


def block_shape(source: Source, key: str, value: Any) -> tuple[int, int]:
    """A check for outputs and inputs of a block: two whole numbers from 1 to 65,536."""
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
"""AutoRound's words among those of the layouts that it exports, as far as they could be taken for more than notes."""

Reader = Callable[[JsonObject, Source], Scheme]
"""From a ``quantization_config`` to what reads the weights."""
