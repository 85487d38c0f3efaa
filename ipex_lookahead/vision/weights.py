"""The weights of a vision tower: where they are in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.float_tensors import READ, check_kind, float_info, read_placed, wrong_shape
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import widen

_PREFIXES = ("model.", "")
"""What precedes the names of a tower's tensors, by release."""


class TowerFolder(SafetensorsCheckpoint):
    """The tensors of a vision-language model's folder.

    Attributes:
        digest: hash of the tensors read so far, with names and shapes.
    """

    def __init__(self, path: Any) -> None:
        """Open the headers. Raises ModelFormatError or UnsupportedModelError."""
        super().__init__(path, other_family=True)
        self.digest = hashlib.sha256()

    def read_tensor(self, tensor: Tensor) -> PackedWeight:
        """Read a weight as it is in the file.

        Raises:
            ModelFormatError: it is missing, has another shape than the config implies, or has NaN or infinity.
            UnsupportedModelError: it is not in floats.
        """
        place, name = tensor.hf, self._name(tensor)
        file, stored = self._tensors[name]
        if stored.shape != place.shape:
            raise wrong_shape(file, tensor, stored)
        check_kind(file, name, stored, most_dimensions=5, dtypes=READ, number=not place.shape)
        if tensor.shape:
            weight = read_placed(file, tensor, stored)
        else:  # a limit, which may be infinite
            kind = float_info(stored.dtype, ()).format
            values = np.empty((), np.float32 if kind == "fp32" else np.uint16)
            file.file.read_into(stored.offset, values, name)
            weight = PackedWeight("fp32", (), widen(values, kind))
            if np.isnan(weight.codes):
                raise ModelFormatError(file.path, name, stored.offset, "is NaN")
        self.digest.update(f"{tensor.name} {weight.format} {weight.shape}".encode())
        self.digest.update(np.ascontiguousarray(weight.codes).data)
        return weight

    def stored_bytes(self, tensors: Iterable[Tensor]) -> int:
        """Return the size of weights in the files. Raises ModelFormatError if one is missing."""
        return sum(self._tensors[name][1].nbytes for name in {self._name(tensor) for tensor in tensors})

    def _name(self, tensor: Tensor) -> str:
        name = next((name for name in self._spellings(tensor.hf.name) if name in self._tensors), None)
        if name is None:
            raise ModelFormatError(self.path, tensor.hf.name, None, "the vision tower's tensor is missing")
        return name

    def _spellings(self, name: str) -> Iterator[str]:
        inner = name.replace("vision_tower.", "vision_tower.vision_model.", 1)
        names = (name, inner) if name.startswith("vision_tower.") else (name,)
        return (prefix + one for one in names for prefix in _PREFIXES)
