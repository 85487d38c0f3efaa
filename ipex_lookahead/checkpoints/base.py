"""What a checkpoint reader gives: a config, tensors by their Hugging Face names, and a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.formats.base import PackedWeight


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
