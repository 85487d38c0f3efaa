"""GGUF files (llama.cpp's format), their blocks taken apart into our streams without changing a bit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.finite import first_not_finite
from ipex_lookahead.checkpoints.gguf_keys import unknown_keys
from ipex_lookahead.checkpoints.gguf_llama import LlamaTensor, llama_config, llama_tensors
from ipex_lookahead.checkpoints.gguf_reader import TENSOR_TYPES, GgufFile, GgufTensor
from ipex_lookahead.checkpoints.hparams import shown
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats import FLOATS, FORMATS
from ipex_lookahead.formats.base import PackedWeight

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 4 << 20


class GgufCheckpoint:
    """A Llama in a GGUF file. See :class:`ipex_lookahead.checkpoints.base.Checkpoint`.

    Attributes:
        metadata: the file's own metadata, unmapped: key to int, float, bool, str, list of str, or numpy array.
        unknown_keys: metadata keys of the architecture that this package does not know; a warning names them.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open and validate. Raises ModelFormatError or UnsupportedModelError; reads no tensor yet."""
        self._file = GgufFile(path)
        self.path = self._file.path
        self.metadata = self._file.metadata
        try:
            self._check_kind()
            self._file.read_tensor_table()
            refuse_unread_types(self._file)
            self.config: dict[str, Any] = llama_config(self._file)
            self._tensors = llama_tensors(self._file, self.config)
            self.unknown_keys = unknown_keys(self.metadata)
        except BaseException:
            self._file.close()
            raise
        if self.unknown_keys:
            names = ", ".join(key[:60] for key in self.unknown_keys[:8]) + (", ..." if self.unknown_keys[8:] else "")
            _log.warning(
                "%s: unknown metadata, which is passed over: %s; if it changes what the model computes, the text will "
                "be wrong", self.path, names,
            )  # fmt: skip
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        self.generation_config: dict[str, Any] = {key: self.config[key] for key in ids if key in self.config}

    def _check_kind(self) -> None:
        key = "general.architecture"
        if key not in self.metadata:
            raise self._file.error(key, None, "is missing")
        if (architecture := self._file.scalar(key)) != "llama":
            raise UnsupportedModelError(
                f"{self.path}: {key} is {shown(architecture)}; the supported architectures are: llama",
                hint="other families run on the torch engine, from their Hugging Face folder with safetensors",
            )
        if (parts := self._file.scalar("split.count", 0)) not in (0, 1):
            raise UnsupportedModelError(
                f"{self.path}: is one of {shown(parts)} parts of a split file",
                hint="join the parts first: llama-gguf-split --merge FIRST-PART OUTPUT",
            )

    def names(self) -> Sequence[str]:
        """Tensor names in Hugging Face's spelling, in the order the model uses them."""
        return list(self._tensors)

    def info(self, name: str) -> TensorInfo:
        """Shape and format of a tensor. Raises ModelFormatError if there is none of that name."""
        source = self._find(name).source
        return TensorInfo(source.shape, source.type.format, FORMATS[source.type.format].group_sizes[0])

    def read(self, name: str) -> PackedWeight:
        """The tensor, codes and scales as in the file, rows in Hugging Face's order.

        Memory: the tensor and 4 MiB, or twice the tensor for float tensors whose rows move. Raises ModelFormatError for
        NaN and infinity (in a float or a scale), and if the file has been cut meanwhile.
        """
        tensor = self._find(name)
        source = tensor.source
        if source.type.format in FLOATS:
            return self._read_floats(tensor)
        target = FORMATS[source.type.format]
        assert target.gguf is not None
        record, group_size = target.gguf.record, target.group_sizes[0]
        fields: Any = record.fields
        rows, blocks = source.shape[0], source.shape[1] // target.gguf.inputs
        arrays = {
            stream.name: np.empty(stream.shape(source.shape, group_size), stream.dtype) for stream in target.streams
        }
        order = tensor.row_order()
        row_bytes = blocks * record.itemsize
        step = max(1, _READ_AT_ONCE // row_bytes)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            place: Any = slice(start, stop) if order is None else order[start:stop]
            whole = len(target.streams) == 1 and order is None  # blocks stay as they are: read where they belong
            buffer: Any = arrays["codes"][place].view(record) if whole else np.empty((stop - start, blocks), record)
            self._file.file.read_into(source.offset + start * row_bytes, buffer, source.name)
            for stream in target.streams:
                part = np.ascontiguousarray(buffer[stream.name]).reshape(stop - start, -1)
                if (bad := target.bad_scale(stream.name, part)) is not None:
                    block, element = divmod(bad.index, part.size // buffer.size)
                    field = int(fields[stream.name][1]) + element * stream.itemsize
                    at = source.offset + start * row_bytes + block * record.itemsize + field
                    raise self._error(source, at, f"{bad.what} {start * blocks + block} {bad.problem}")
                if not whole:
                    arrays[stream.name][place] = part
        return PackedWeight(source.type.format, source.shape, group_size=group_size, **arrays)

    def _read_floats(self, tensor: LlamaTensor) -> PackedWeight:
        source = tensor.source
        values: npt.NDArray[np.generic] = np.empty(source.shape, FORMATS[source.type.format].streams[0].dtype)
        self._file.file.read_into(source.offset, values, source.name)
        if (bad := first_not_finite(values, source.type.format)) is not None:
            at = source.offset + bad * values.itemsize
            raise self._error(source, at, f"value {bad} is NaN or infinite")
        order = tensor.row_order()
        if order is not None:
            in_file, values = values, np.empty_like(values)
            values[order] = in_file
        return PackedWeight(source.type.format, source.shape, values)

    def _error(self, source: GgufTensor, at: int, problem: str) -> ModelFormatError:
        return self._file.error(source.name, at, problem)

    def _find(self, name: str) -> LlamaTensor:
        if name not in self._tensors:
            raise self._file.error(name, None, "there is no tensor of this name")
        return self._tensors[name]

    def text_tokenizer(self) -> Any | None:
        """The tokenizer built from the file's metadata, or None where it carries no tokens."""
        if "tokenizer.ggml.tokens" not in self.metadata:
            return None
        from ipex_lookahead.tokenization.gguf import text_from_gguf

        try:
            return text_from_gguf(self.metadata, self.path)
        except ModelFormatError as error:
            if error.offset is None and error.field in self._file.offsets:
                at = self._file.offsets[error.field]
                raise self._file.error(error.field, at, error.problem, hint=error.hint) from None
            raise

    def close(self) -> None:
        """Release the file. Tensors already read stay valid."""
        self._file.close()


def refuse_unread_types(file: GgufFile) -> None:
    """Raise UnsupportedModelError, with the command that converts the file, for tensors of types that are not read."""
    unread = Counter(tensor.type.name for tensor in file.tensors.values() if not tensor.type.format)
    if not unread:
        return
    first = next(tensor for tensor in file.tensors.values() if not tensor.type.format)
    counts = ", ".join(f"{count} of {name}" for name, count in unread.most_common())
    supported = ", ".join(sorted(kind.name for kind in TENSOR_TYPES.values()))
    raise UnsupportedModelError(
        f"{file.path}: tensor {first.name} has type {first.type.name}; the supported types are {supported}"
        f" (in this file {counts} are not)",
        hint=f"take a Q8_0 or Q4_0 file of this model, or convert: llama-quantize --allow-requantize {file.path.name} "
        f"{file.path.stem}-Q8_0.gguf Q8_0",
    )
