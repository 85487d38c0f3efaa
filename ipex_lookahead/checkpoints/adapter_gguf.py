"""LoRA adapters in GGUF files, as llama.cpp's ``convert_lora_to_gguf.py`` writes them.

The tensors ``NAME.lora_a`` and ``NAME.lora_b`` change the tensor NAME of the model's GGUF file; the rows of B are in
that file's order. There is one alpha for all matrices: an alpha of 0 means a scale of 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ipex_lookahead.architectures import family
from ipex_lookahead.architectures.hparams import shown
from ipex_lookahead.architectures.spec import ModelSpec, Place, Tensor
from ipex_lookahead.checkpoints.adapter_base import Floats, LowRankPair
from ipex_lookahead.checkpoints.files import BinaryFile
from ipex_lookahead.checkpoints.gguf_reader import MAGIC, GgufFile, GgufTensor
from ipex_lookahead.errors import InputError, LookaheadError, ModelFormatError, UnsupportedModelError

TYPES = ("F32", "F16", "BF16", "Q8_0")
"""The types that llama.cpp's converter writes."""
_SAME_NAMES = {"granitemoehybrid": ("granite", "granitemoe")}
"""Family -> architectures of GGUF files of its models without Mamba layers, with the same names and rows."""
_SEARCHED = 64 << 10
"""Bytes at the beginning of a file that are searched for an adapter's keys."""
_UNKNOWN_SCALE = (
    "a GGUF adapter has one alpha for all matrices, here {alpha:g}, so its scales are {scales}; if it was trained with"
    " use_rslora or alpha_pattern, which the converter does not keep, these scales are wrong: use the PEFT folder"
)


def is_gguf_adapter(path: Path) -> bool:
    """Return True for a GGUF file that declares an adapter; False for any other file.

    Adapters have no vocabulary, so the key is near the file's beginning; the metadata of models are not parsed.
    """
    try:
        file = BinaryFile(path)
    except LookaheadError:
        return False
    try:
        begin = file.read(0, min(file.size, _SEARCHED), "header")
    except LookaheadError:
        return False
    finally:
        file.close()
    return begin.startswith(MAGIC) and b"adapter.type" in begin


def declares_adapter(metadata: Mapping[str, Any]) -> bool:
    """Return True if a GGUF file's metadata declare an adapter."""
    return metadata.get("general.type") == "adapter" or "adapter.type" in metadata


class GgufAdapter:
    """An adapter in a GGUF file; see ``AdapterFile``."""

    kind = "GGUF"

    def __init__(self, path: Path) -> None:
        """Open and validate metadata and tensor table. Raises as ``open_adapter``."""
        self._file = GgufFile(path)
        self.path = self._file.path
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        file = self._file
        if not declares_adapter(file.metadata):
            raise InputError(
                f"{self.path}: is not an adapter: general.type is {shown(file.metadata.get('general.type'))}",
                hint="give a model as the model, and an adapter as the adapter",
            )
        if (kind := file.scalar("adapter.type", "lora")) != "lora":
            raise UnsupportedModelError(f"{self.path}: adapter.type is {shown(kind)}; lora is supported")
        if "adapter.alora.invocation_tokens" in file.metadata:
            raise UnsupportedModelError(
                f"{self.path}: is an aLoRA adapter, which becomes active in the middle of a text; that is not supported"
            )
        self.architecture = file.scalar("general.architecture", "")
        self.base = self._base_name()
        file.read_tensor_table()
        self.alpha = self._alpha()
        self._pairs = self._read_pairs()
        scales = ", ".join(f"{one:g}" for one in sorted({pair.scale for pair in self._pairs})[:4])
        self.notes: Sequence[str] = (_UNKNOWN_SCALE.format(alpha=self.alpha, scales=scales),)

    def _base_name(self) -> str:
        prefix = "general.base_model.0."
        url = self._file.metadata.get(f"{prefix}repo_url")
        if isinstance(url, str) and url.startswith("https://huggingface.co/") and url.count("/") == 4:
            return url.removeprefix("https://huggingface.co/")[:256]
        name = self._file.metadata.get(f"{prefix}name")
        return name[:256] if isinstance(name, str) and name.isprintable() else ""

    def _alpha(self) -> float:
        key = "adapter.lora.alpha"
        value = self._file.scalar(key, 0.0)
        if isinstance(value, bool | str) or not math.isfinite(value) or abs(value) > 1e9:
            raise self._file.error(key, self._file.offsets.get(key), f"is {shown(value)}; it must be a number")
        return float(value)

    def _read_pairs(self) -> list[LowRankPair]:
        found: dict[str, dict[str, GgufTensor]] = {}
        for name, tensor in self._file.tensors.items():
            matrix, part = name[:-7], name[-7:]
            if part not in (".lora_a", ".lora_b"):
                norm = " It changes a norm, which llama.cpp ignores." if "_norm" in name else ""
                raise UnsupportedModelError(
                    f"{self.path}: tensor {name} is not part of a LoRA adapter, which has NAME.lora_a and"
                    f" NAME.lora_b.{norm}",
                    hint="merge the adapter with peft (merge_and_unload) and convert the result",
                )
            if matrix.startswith(("token_embd.", "per_layer_token_embd.")):
                raise UnsupportedModelError(f"{self.path}: changes {matrix}: embeddings take no adapter")
            if tensor.type.name not in TYPES:
                raise UnsupportedModelError(
                    f"{self.path}: tensor {name} has type {tensor.type.name}; the types of adapters are"
                    f" {', '.join(TYPES)}",
                    hint="convert the adapter again: convert_lora_to_gguf.py --outtype f16",
                )
            found.setdefault(matrix, {})[part] = tensor
        if not found:
            raise ModelFormatError(self.path, "tensors", None, "the adapter has no tensors")
        return [self._pair(matrix, parts) for matrix, parts in found.items()]

    def _pair(self, matrix: str, parts: dict[str, GgufTensor]) -> LowRankPair:
        first = next(iter(parts.values()))
        if missing := {".lora_a", ".lora_b"} - {*parts}:
            raise first.error(first.entry, f"has no {matrix}{missing.pop()} next to it")
        a, b = parts[".lora_a"], parts[".lora_b"]
        scale = self.alpha / b.shape[-1] if self.alpha else 1.0
        return LowRankPair(
            matrix, a.shape, b.shape, scale, lambda: (_values(a), _values(b)), lambda text: a.error(a.entry, text)
        )

    def pairs(self) -> Sequence[LowRankPair]:
        return self._pairs

    def places(self, tensor: Tensor, spec: ModelSpec) -> Sequence[Place]:
        return (tensor.gguf,)

    def tiled(self, spec: ModelSpec) -> bool:
        keys = family(spec.model_type).GGUF
        return keys is not None and keys.constants.get("linear_value_heads") == "tiled"

    def check_family(self, spec: ModelSpec) -> None:
        keys = family(spec.model_type).GGUF
        same = _SAME_NAMES.get(spec.model_type, ())
        if keys is None or self.architecture not in (*keys.architectures, *same):
            named = f", trained for {self.base}," if self.base else ""
            known = "no architecture" if keys is None else " or ".join(keys.architectures)
            raise InputError(
                f"{self.path}: the adapter{named} is for models of the architecture {shown(self.architecture)}, and a"
                f" {spec.model_type} model has {known}",
                hint=f"load {self.base or 'the model that it was trained for'}",
            )

    def close(self) -> None:
        self._file.file.close()


def _values(tensor: GgufTensor) -> Floats:
    """Return the values of a matrix, float32."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    made = np.empty(tensor.shape, np.float32)
    with np.errstate(all="ignore"):  # the caller refuses values that are not finite
        for start, _, blocks in tensor.pieces(0, tensor.shape[0]):
            made[start : start + len(blocks)] = dequantize(blocks, GGMLQuantizationType[tensor.type.name])
    return made
