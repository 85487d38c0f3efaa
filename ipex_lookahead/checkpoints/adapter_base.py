"""The interface of the readers of adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec, Place, Tensor
from ipex_lookahead.errors import ModelFormatError

Floats = npt.NDArray[np.float32]

CONFIG = "adapter_config.json"
"""The file that makes a folder an adapter."""


@dataclass(frozen=True, slots=True)
class LowRankPair:
    """A and B of one matrix in an adapter's file, not read yet.

    Attributes:
        matrix: name of the changed matrix in the base model's files.
        a, b: shapes [rank, n_in] and [n_out, rank].
        scale: factor on B A.
        read: reads A and B, float32.
        error: returns an error about this entry of the file.
    """

    matrix: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    scale: float
    read: Callable[[], tuple[Floats, Floats]]
    error: Callable[[str], ModelFormatError]


class AdapterFile(Protocol):
    """An opened adapter. Opening validates everything except tensor values.

    Attributes:
        path: the folder or file.
        kind: "PEFT" or "GGUF".
        base: the model that it was trained for, as the file names it; "" if it does not.
        notes: what the user should know about it, as sentences.
    """

    path: Path
    kind: str
    base: str
    notes: Sequence[str]

    def pairs(self) -> Sequence[LowRankPair]:
        """Return the changed matrices in the file's order."""
        ...

    def places(self, tensor: Tensor, spec: ModelSpec) -> Sequence[Place]:
        """Return the places that a weight may have in the files that the adapter's names refer to."""
        ...

    def tiled(self, spec: ModelSpec) -> bool:
        """Return True if the adapter has a model's value heads in the order ``GatedDeltaNet.tiled``."""
        ...

    def check_family(self, spec: ModelSpec) -> None:
        """Raise InputError if the adapter names another family than the model's."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...
