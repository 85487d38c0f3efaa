"""GGUF files (llama.cpp's format), their blocks taken apart into our streams without changing a bit."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.gguf_llama import LlamaTensor, llama_config, llama_tensors
from ipex_lookahead.checkpoints.gguf_reader import GgufFile
from ipex_lookahead.checkpoints.hparams import shown
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.formats.base import GROUP, PackedWeight

_READ_AT_ONCE = 4 << 20
_FLOATS: dict[str, type[np.generic]] = {"fp32": np.float32, "fp16": np.uint16, "bf16": np.uint16}


class GgufCheckpoint:
    """A Llama in a GGUF file. See :class:`ipex_lookahead.checkpoints.base.Checkpoint`.

    Attributes:
        metadata: the file's own metadata, unmapped: key to int, float, bool, str, list of str, or numpy array.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open and validate. Raises ModelFormatError or UnsupportedModelError; reads no tensor yet."""
        self._file = GgufFile(path)
        self.path = self._file.path
        self.metadata = self._file.metadata
        try:
            self._check_kind()
            self._file.read_tensor_table()
            self.config: dict[str, Any] = llama_config(self._file)
            self._tensors = llama_tensors(self._file, self.config)
        except BaseException:
            self._file.close()
            raise
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        self.generation_config: dict[str, Any] = {key: self.config[key] for key in ids if key in self.config}

    def _check_kind(self) -> None:
        key = "general.architecture"
        if key not in self.metadata:
            raise self._file.error(key, None, "is missing")
        if (architecture := self._file.scalar(key)) != "llama":
            raise UnsupportedModelError(
                f"{self.path}: {key} is {shown(architecture)}; the supported architectures are: llama"
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
        return TensorInfo(source.shape, source.type.format, GROUP if source.type.block > 1 else 0)

    def read(self, name: str) -> PackedWeight:
        """The tensor, codes and scales as in the file, rows in Hugging Face's order.

        Memory: the tensor and 4 MiB, or twice the tensor for float tensors whose rows move. Raises ModelFormatError if
        the file has been cut meanwhile.
        """
        tensor = self._find(name)
        source = tensor.source
        if source.type.format in _FLOATS:
            return self._read_floats(tensor)
        block = _BLOCKS[source.type.format]
        rows, blocks = source.shape[0], source.shape[1] // GROUP
        codes = np.empty((rows, blocks * block["codes"].shape[0]), _CODES[source.type.format])
        scales = np.empty((rows, blocks), np.uint16)
        minimums = np.empty((rows, blocks), np.uint16) if "minimum" in (block.names or ()) else None
        order = tensor.row_order()
        row_bytes = blocks * block.itemsize
        step = max(1, _READ_AT_ONCE // row_bytes)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            buffer = np.empty((stop - start, blocks), block)
            self._file.file.read_into(source.offset + start * row_bytes, buffer, source.name)
            place: Any = slice(start, stop) if order is None else order[start:stop]
            codes[place] = buffer["codes"].reshape(stop - start, -1)
            scales[place] = buffer["scale"]
            if minimums is not None:
                minimums[place] = buffer["minimum"]
        return PackedWeight(source.type.format, source.shape, codes, GROUP, scales, minimums)

    def _read_floats(self, tensor: LlamaTensor) -> PackedWeight:
        source = tensor.source
        values: npt.NDArray[np.generic] = np.empty(source.shape, _FLOATS[source.type.format])
        self._file.file.read_into(source.offset, values, source.name)
        order = tensor.row_order()
        if order is not None:
            in_file, values = values, np.empty_like(values)
            values[order] = in_file
        return PackedWeight(source.type.format, source.shape, values)

    def _find(self, name: str) -> LlamaTensor:
        if name not in self._tensors:
            raise self._file.error(name, None, "there is no tensor of this name")
        return self._tensors[name]

    def tokenizer(self) -> Any | None:
        """The tokenizer built from the file's metadata, or None where it carries no tokens."""
        if "tokenizer.ggml.tokens" not in self.metadata:
            return None
        from ipex_lookahead.tokenization.gguf import tokenizer_from_gguf

        return tokenizer_from_gguf(self.metadata, self.path)

    def close(self) -> None:
        """Release the file. Tensors already read stay valid."""
        self._file.close()


_BLOCKS = {
    "sym_int8": np.dtype([("scale", "<u2"), ("codes", "i1", GROUP)]),
    "sym_int4": np.dtype([("scale", "<u2"), ("codes", "u1", GROUP // 2)]),
    "asym_int4": np.dtype([("scale", "<u2"), ("minimum", "<u2"), ("codes", "u1", GROUP // 2)]),
}
"""A block of 32 weights as GGUF stores it: Q8_0, Q4_0, Q4_1."""
_CODES: dict[str, type[np.generic]] = {"sym_int8": np.int8, "sym_int4": np.uint8, "asym_int4": np.uint8}
