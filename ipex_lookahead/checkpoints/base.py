"""The interface of checkpoint readers: a config, tensors by their Hugging Face names, and a tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.formats.base import PackedWeight

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and format (a key of ``FORMATS``) of a tensor that has not been read yet.

    Attributes:
        decoded_from: the file's own type, if it has no equivalent here and values are decoded into ``format``.
        ordered: True if the weight has an order of inputs (``PackedWeight.order``).
    """

    shape: tuple[int, ...]
    format: str
    group_size: int = 0
    decoded_from: str = ""
    ordered: bool = False

    @classmethod
    def of(cls, weight: PackedWeight) -> TensorInfo:
        """Return the info of a weight in memory."""
        return cls(weight.shape, weight.format, weight.group_size, ordered=weight.order is not None)


class Folder:
    """Common methods of checkpoints in folders."""

    path: Path
    config: dict[str, Any]

    def text_tokenizer(self) -> Any | None:
        """Return the folder's tokenizer, or None if it has none."""
        from ipex_lookahead.tokenization.folder import text_from_folder

        return text_from_folder(self.path, self.config)

    def warn_of_unused(self, model_type: str, names: Sequence[str]) -> None:
        """Log a warning about the folder's tensors that a model of this family does not have."""
        if names:
            _log.warning(
                "%s: ignoring tensors that a %s model does not have: %s%s; if they change what the model computes, the "
                "output is wrong", self.path, model_type, ", ".join(names[:8]),
                f" and {len(names) - 8} more" if names[8:] else "",
            )  # fmt: skip


class Checkpoint(Protocol):
    """An opened checkpoint. Opening validates everything except tensor values; tensors are read one at a time.

    ``config`` has Hugging Face's key names and holds only allow-listed, type-checked keys, for all kinds of
    checkpoints. ``spec`` is the model described by it; tensors have the names in the spec.
    """

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    spec: ModelSpec

    def names(self) -> Sequence[str]:
        """Return the names of the spec's tensors that are present, such as ``model.layers.0.mlp.up_proj.weight``."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Return shape and format of a tensor; raise ModelFormatError if there is none with this name."""
        ...

    def read(self, name: str) -> PackedWeight:
        """Read a tensor without changing its bits, as a copy that does not depend on the file."""
        ...

    def text_tokenizer(self) -> Any | None:
        """Return the checkpoint's tokenizer (``tokenization.text.TextTokenizer``), or None if it has none."""
        ...

    def close(self) -> None:
        """Close the file. Tensors already read stay valid."""
        ...
