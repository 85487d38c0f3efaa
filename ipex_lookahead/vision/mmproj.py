"""Vision towers in GGUF files (``mmproj``), as llama.cpp's converter writes them next to the text model's file.

The metadata do not have everything: the base of rope, the pooling, the number of positions and the limits on pixels are
those of the family, or follow from the shapes of tensors. The layouts of places here are ``channels_first``: columns in
the order (channel, y, x) instead of (y, x, channel); ``axes_first``: rows by (axis, position) instead of (position,
axis); and ``frames``: a tensor for each frame, with names that end in "", ".1", ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ipex_lookahead.architectures.hparams import Source
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint, refuse_unread_types
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.checkpoints.gguf_reader import GgufTensor
from ipex_lookahead.checkpoints.placed import run_of
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats import FLOATS, as_floats
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.vision.towers import gemma3, gemma4, gemma4_unified, idefics3, lfm2_vl, qwen3_vl
from ipex_lookahead.vision.towers.base import checked

PROJECTORS: Mapping[str, Any] = {
    "gemma4v": gemma4,
    "gemma4uv": gemma4_unified,
    "qwen3vl_merger": qwen3_vl,
    "gemma3": gemma3,
    "idefics3": idefics3,
    "lfm2": lfm2_vl,
}
"""Type of projector -> its tower."""
_BEST_FIRST = (32, 1, 0, 7)
"""Types of files, ``general.file_type``: BF16, F16, F32, Q8_0."""


class MmprojFile(GgufCheckpoint):
    """A GGUF file with a vision tower.

    Attributes:
        tower: its module of ``towers``.
        settings: settings of the image processor that the file has.
        hidden: hidden size of the text model that it was made for.
        digest: hash of the tensors read so far, with names and shapes.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open the file without reading tensors. Raises ModelFormatError or UnsupportedModelError."""
        self._file = GgufParts(path)
        self.path, self.metadata = self._file.path, self._file.metadata
        self._stored_formats, self._numbers, self._tensors = {}, {}, {}
        self.digest = hashlib.sha256()
        try:
            self._file.read_tensor_table()
            refuse_unread_types(self._file)
            self.tower = self._tower()
            self.hidden = self.whole("projection_dim")
            config = self.tower.gguf_config(self)
            keys = {f"vision_config.{key}": (key, None) for key in config}
            self.config = checked({**self.tower.KEYS, **self.tower.OUTER}, config, Source.at(self.path, keys))
            self.settings = self.tower.gguf_settings(self)
        except BaseException:
            self._file.close()
            raise

    def _tower(self) -> Any:
        architecture = self.metadata.get("general.architecture")
        kind = self.metadata.get("clip.vision.projector_type", self.metadata.get("clip.projector_type"))
        if architecture != "clip" or not isinstance(kind, str) or kind not in PROJECTORS:
            raise UnsupportedModelError(
                f"{self.path}: architecture {architecture} with projector {kind} is not supported as a vision tower; "
                f"supported projectors are {', '.join(PROJECTORS)}"
            )
        return PROJECTORS[kind]

    def whole(self, key: str, default: int | None = None) -> int:
        """See ``GgufTower``."""
        name = f"clip.vision.{key}"
        if default is not None and name not in self.metadata:
            return default
        value = self._file.scalar(name)
        if type(value) is not int or not 0 <= value <= 1 << 20:
            raise self._file.error(name, self._file.offsets.get(name), f"is {value!r}; it must be a whole number")
        return value

    def number(self, key: str) -> float:
        """See ``GgufTower``."""
        name = f"clip.vision.{key}"
        value = self._file.scalar(name)
        if not isinstance(value, float) or not 0 < value < 1:
            raise self._file.error(name, self._file.offsets.get(name), f"is {value!r}; it must be from 0 to 1")
        return float(str(np.float32(value)))  # as the converter read it

    def mean_and_std(self) -> dict[str, list[float]]:
        """See ``GgufTower``."""
        found = {f"image_{name}": self.metadata.get(f"clip.vision.image_{name}") for name in ("mean", "std")}
        return {key: [float(one) for one in value] for key, value in found.items() if value is not None}

    def layers_with_deepstack(self) -> list[int]:
        """See ``GgufTower``."""
        return [i for i, one in enumerate(self.metadata.get("clip.vision.is_deepstack_layers", ())) if one]

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """See ``GgufTower``."""
        return self._stored(name, dimensions).shape

    def has(self, name: str) -> bool:
        """See ``GgufTower``."""
        return name in self._file.tensors

    def _stored(self, name: str, dimensions: int) -> GgufTensor:
        if (found := self._file.tensors.get(name)) is None:
            raise self._file.error(name, None, "is missing from the file")
        if len(found.shape) != dimensions:
            raise found.error(found.entry, f"has shape {list(found.shape)}; it must have {dimensions} dimensions")
        return found

    def read_tensor(self, tensor: Tensor) -> PackedWeight:
        """Read a weight as in a folder, in floats.

        Raises ModelFormatError if it is missing, has another shape than the metadata imply, or has NaN or infinity.
        """
        place = tensor.gguf
        if place.layout == "frames":
            frames = (place.name, *(f"{place.name}.{i}" for i in range(1, place.shape[2])))
            shape = (place.shape[0], *place.shape[1:2], *place.shape[3:])
            parts = [self._floats(tensor, name, shape).codes.reshape(shape) for name in frames]
            if len({part.dtype for part in parts}) > 1:
                raise self._file.error(place.name, None, "has frames of several types")
            return self._noted(tensor, np.stack(parts, 2), self._format_of(place.name))
        weight = self._floats(tensor, place.name, place.shape)
        codes = weight.codes
        if place.layout == "transposed":
            codes = codes.reshape(place.shape).T
        elif place.layout == "channels_first":
            side = isqrt(tensor.shape[-1] // 3)
            codes = np.moveaxis(codes.reshape(-1, 3, side, side), 1, 3)
        elif place.layout == "axes_first":
            codes = codes.reshape(2, -1, tensor.shape[-1]).swapaxes(0, 1)
        return self._noted(tensor, codes, weight.format)

    def _floats(self, tensor: Tensor, name: str, shape: tuple[int, ...]) -> PackedWeight:
        """Read a tensor of any type that must have this shape; rows as in ``tensor.gguf``."""
        source = self._stored(name, len(shape))
        if source.shape != shape:
            raise source.error(source.entry, f"has shape {list(source.shape)}; the metadata imply {list(shape)}")
        place = replace(tensor.gguf, name=name, shape=shape, layout="plain")
        if place.rows is None and (tensor.gguf.layout in ("frames", "transposed") or not tensor.shape):  # whole
            plain = replace(tensor, shape=shape, gguf=place)
        else:
            plain = replace(tensor, gguf=place)
        if not tensor.shape and source.type.format == "fp32":  # a limit, which may be infinite
            values = np.empty(1, np.float32)
            source.file.read_into(source.offset, values, name)
            if np.isnan(values[0]):
                raise source.error(source.offset, "is NaN")
            return PackedWeight("fp32", (1,), values)
        weight = self._read(plain, source, run_of(plain, place))
        return weight if weight.format in FLOATS else as_floats(weight)

    def _format_of(self, name: str) -> str:
        kind = str(self._file.tensors[name].type.format)
        return kind if kind in FLOATS else "fp32"

    def _noted(self, tensor: Tensor, codes: np.ndarray[Any, Any], kind: str) -> PackedWeight:
        weight = PackedWeight(kind, tensor.shape, np.ascontiguousarray(codes.reshape(tensor.shape)))
        self.digest.update(f"{tensor.name} {kind} {weight.shape}".encode())
        self.digest.update(weight.codes.data)
        return weight


def mmproj_of(model: str | PathLike[str], hidden: int) -> Path | None:
    """Return the file with the vision tower of a GGUF file: one in its folder with "mmproj" in the name that fits.

    Args:
        model: the text model's file.
        hidden: its hidden size.

    Returns:
        The file; of several that fit, the one of the best type, then the first by name. None if there is none.
    """
    found: list[tuple[int, str, Path]] = []
    for path in sorted(Path(model).parent.glob("*mmproj*.gguf")):
        try:
            file = MmprojFile(path)
        except (ModelFormatError, UnsupportedModelError):
            continue  # another model's, or damaged: an explicit path reports it
        file.close()
        kind = file.metadata.get("general.file_type")
        rank = _BEST_FIRST.index(kind) if kind in _BEST_FIRST else len(_BEST_FIRST)
        if file.hidden == hidden:
            found.append((rank, path.name, path))
    return min(found)[2] if found else None
