"""What a checkpoint reader gives: a config, tensors by their Hugging Face names, and a tokenizer."""

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
    """What is known of a tensor before it is read: shape, and the format its bits are in (``FORMATS``).

    ``decoded_from`` names the file's own type where that is none of ours, and the values are decoded into ``format``.
    ``ordered``: the weight has an order of inputs (``PackedWeight.order``).
    """

    shape: tuple[int, ...]
    format: str
    group_size: int = 0
    decoded_from: str = ""
    ordered: bool = False

    @classmethod
    def of(cls, weight: PackedWeight) -> TensorInfo:
        """What is known of a weight that is there."""
        return cls(weight.shape, weight.format, weight.group_size, ordered=weight.order is not None)


class Folder:
    """What all checkpoints in folders have."""

    path: Path
    config: dict[str, Any]

    def text_tokenizer(self) -> Any | None:
        """The folder's tokenizer, or None where it carries none."""
        from ipex_lookahead.tokenization.folder import text_from_folder

        return text_from_folder(self.path, self.config)

    def warn_of_unused(self, model_type: str, names: Sequence[str]) -> None:
        """Say which tensors of the folder a model of that family does not have."""
        if names:
            _log.warning(
                "%s: tensors that a %s model does not have, which are passed over: %s%s; if they change what the model "
                "computes, the text will be wrong", self.path, model_type, ", ".join(names[:8]),
                f" and {len(names) - 8} more" if names[8:] else "",
            )  # fmt: skip


class Checkpoint(Protocol):
    """An opened checkpoint. Opening validates everything but the tensors' values; reading is tensor by tensor.

    ``config`` uses Hugging Face's names and holds only allow-listed, type-checked keys, whatever the file kind.
    ``spec`` is the model that it describes, and tensors have the names that the spec gives them.
    """

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    spec: ModelSpec

    def names(self) -> Sequence[str]:
        """Names of the spec's tensors that are there, such as ``model.layers.0.self_attn.q_proj.weight``."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Shape and format of a tensor. Raises ModelFormatError if there is none of that name."""
        ...

    def read(self, name: str) -> PackedWeight:
        """The tensor, its bits as they are in the file (a copy: the file may go away afterwards)."""
        ...

    def text_tokenizer(self) -> Any | None:
        """The checkpoint's tokenizer (``tokenization.text.TextTokenizer``), or None where it carries none."""
        ...

    def close(self) -> None:
        """Release the file. Tensors already read stay valid."""
        ...
