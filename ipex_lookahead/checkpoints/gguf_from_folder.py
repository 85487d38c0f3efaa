"""A folder of ours that was made of a GGUF file, seen as the file that it would be (``gguf_save.Source``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.drafters import counting
from ipex_lookahead.checkpoints.gguf_metadata import METADATA, has_metadata
from ipex_lookahead.checkpoints.gguf_reader import GgufFile, GgufTensor
from ipex_lookahead.checkpoints.gguf_types import TENSOR_TYPES
from ipex_lookahead.checkpoints.low_bit import LowBitCheckpoint
from ipex_lookahead.checkpoints.placed import as_in_gguf, head_tensors, row_order, run_of
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import dequantize

_F32 = TENSOR_TYPES[0]


class FolderAsGguf:
    """Weights from a folder, metadata and the rope's tensors from its ``metadata.gguf``."""

    def __init__(self, checkpoint: LowBitCheckpoint) -> None:
        """Raises InputError for a folder without metadata.gguf, ModelFormatError for a damaged one."""
        if not has_metadata(checkpoint.path):
            raise InputError(
                f"{checkpoint.path}: was not made of a GGUF file (it has no {METADATA}), and what GGUF says of a"
                " tokenizer is not to be had from a folder",
                hint="make a float GGUF file of the original with llama.cpp's convert_hf_to_gguf.py, and give that",
            )
        self._checkpoint = checkpoint
        self._file = GgufFile(checkpoint.path / METADATA)
        self.path, self.metadata = checkpoint.path, self._file.metadata
        # A head that the file did not have, but lay beside it, has no place in these metadata.
        blocks = self.metadata.get(f"{self.metadata.get('general.architecture')}.nextn_predict_layers", 0)
        self.config = counting(checkpoint.config, blocks) if not blocks else checkpoint.config
        self.spec = checkpoint.spec if blocks else replace(checkpoint.spec, mtp=None)
        try:
            self._file.read_tensor_table()
        except BaseException:
            self.close()
            raise

    @property
    def metadata_file(self) -> Path:
        """``metadata.gguf``."""
        return self._file.path

    def stored(self) -> Iterator[tuple[GgufTensor, list[Tensor]]]:
        """The rope's tensors, and then every tensor that the model's weights are parts of, as float32 for now."""
        for stored in self._file.tensors.values():
            yield stored, []
        parts: dict[str, list[Tensor]] = {}
        for tensor in (*self.spec.tensors(), *head_tensors(self.spec).values()):
            if tensor.gguf.layout == "key":  # metadata.gguf has it
                continue
            parts.setdefault(tensor.gguf.name, []).append(tensor)
        for name, weights in parts.items():
            shape = weights[0].gguf.shape
            yield GgufTensor(name, shape, _F32, 0, 4 * math.prod(shape), 0, self._file.file), weights

    def copied(self, stored: GgufTensor, parts: list[Tensor]) -> npt.NDArray[np.uint8]:
        """A tensor of metadata.gguf, or a vector of the folder as GGUF has it."""
        if not parts:
            data = np.empty(stored.nbytes, np.uint8)
            stored.file.read_into(stored.offset, data, stored.name)
            return data
        joined = np.empty(math.prod(stored.shape), np.float32)
        for part in parts:
            values = as_in_gguf(dequantize(self._checkpoint.read(part.name)), part.gguf)
            run, order = run_of(part, part.gguf), row_order(part, part.gguf)
            joined[run.first :][run.rows] = values if order is None else values[order]
        return joined.view(np.uint8)

    def close(self) -> None:
        """Release metadata.gguf."""
        self._file.close()
