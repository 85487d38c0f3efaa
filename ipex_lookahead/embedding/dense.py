"""Dense layers after pooling, from the folders of sentence-transformers' modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.float_tensors import read_float
from ipex_lookahead.checkpoints.safetensors_reader import SafetensorsFile
from ipex_lookahead.embedding.pooling import activated
from ipex_lookahead.embedding.settings import DenseLayer, Settings
from ipex_lookahead.engines.native.linear import LinearPool
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats import dequantize
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import first_not_finite

Floats = npt.NDArray[np.float32]
_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Heads:
    """Layers after pooling.

    Attributes:
        layers: float32 [n, inputs] -> [n, outputs], in order.
        outputs: width after the last.
    """

    layers: Sequence[Callable[[Floats], Floats]]
    outputs: int

    @classmethod
    def of(cls, settings: Settings, hidden: int, threads: int | None) -> Heads:
        """Read the layers of a folder, for rows of width ``hidden``.

        Raises:
            ModelFormatError: a file is damaged, or the widths do not fit each other.
            UnsupportedModelError: the weights are in a pickle.
        """
        width = hidden * max(len(settings.modes), 1)
        layers = []
        pool = LinearPool(threads) if settings.dense else None
        for layer in settings.dense:
            if layer.inputs != width:
                problem = f"is {layer.inputs}, but the vectors before the layer have {width} values"
                raise ModelFormatError(layer.path / "config.json", "in_features", None, problem)
            layers.append(_layer(layer, pool))
            width = layer.outputs
        return cls(layers, width)


def _layer(layer: DenseLayer, pool: Any) -> Callable[[Floats], Floats]:
    if not (layer.path / _FILE).is_file():
        if (layer.path / "pytorch_model.bin").is_file():
            raise UnsupportedModelError(
                f"{layer.path}: the weights are in a pickle, which can run code when loaded; {_FILE} is needed",
                hint="save the model again with a current sentence-transformers",
            )
        raise ModelFormatError(layer.path, _FILE, None, "is missing")
    file = SafetensorsFile(layer.path / _FILE)
    try:
        weight = _tensor(file, "linear.weight", (layer.outputs, layer.inputs))
        bias = _tensor(file, "linear.bias", (layer.outputs,)) if layer.bias else None
    finally:
        file.close()
    linear = pool.layer(PackedWeight("fp32", weight.shape, weight), bias)

    def run(rows: Floats) -> Floats:
        found = np.empty((len(rows), layer.outputs), np.float32)
        linear.into(np.ascontiguousarray(rows), found)
        return activated(found, layer.activation)

    return run


def _tensor(file: SafetensorsFile, name: str, shape: tuple[int, ...]) -> Floats:
    stored = file.tensors.get(name)
    if stored is None:
        raise ModelFormatError(file.path, name, None, "is missing")
    if tuple(stored.shape) != shape:
        raise ModelFormatError(
            file.path, name, stored.entry, f"has shape {list(stored.shape)}; config.json implies {list(shape)}"
        )
    values = np.require(dequantize(read_float(file, name, stored)), np.float32, ("C", "A")).reshape(shape)
    if first_not_finite(values, "fp32") is not None:
        raise ModelFormatError(file.path, name, stored.entry, "has NaN or infinity")
    return values
