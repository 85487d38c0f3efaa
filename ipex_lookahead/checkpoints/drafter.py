"""A drafting head that has a folder or file of its own, opened for the model that it drafts for."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec, gemma4_assistant
from ipex_lookahead.checkpoints import family_of, kind_of, open_checkpoint
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.eagle3 import Eagle3Folder, Eagle3Gguf, is_eagle3
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.errors import UnsupportedModelError

_ASSISTANTS = ("gemma4_assistant", gemma4_assistant.GGUF.architecture)


@dataclass(frozen=True, slots=True)
class Drafter:
    """An opened head.

    Attributes:
        checkpoint: its own weights; to be closed.
        spec: what it computes; ``spec.features`` says which of the target's hidden states it reads, and shares.
        ids: int32 [outputs], the token that each output of its lm_head stands for; None: all tokens in their order.
    """

    checkpoint: Checkpoint
    spec: ModelSpec
    ids: npt.NDArray[np.int32] | None


def architecture_of(path: Path) -> Any:
    """``general.architecture`` of a GGUF file, None where it says nothing. Raises ModelFormatError."""
    file = GgufParts(path)
    try:
        return file.scalar("general.architecture")
    finally:
        file.close()


def open_drafter(path: str | PathLike[str], target: ModelSpec) -> Drafter:
    """Open the drafting head at ``path`` for a model.

    Raises:
        InputError: there is nothing at ``path``, or the head does not fit the model; it says in what.
        ModelFormatError: a file is damaged or not whole.
        UnsupportedModelError: it is no head that this package runs.
    """
    kind, place = kind_of(path)
    if kind == "safetensors" and is_eagle3(read_json(place / "config.json")):
        folder = Eagle3Folder(place, target)
        return Drafter(folder, folder.spec, folder.ids)
    if kind == "gguf" and architecture_of(place) == "eagle3":
        file = Eagle3Gguf(place, target)
        return Drafter(file, file.spec, file.ids)
    if (architecture_of(place) if kind == "gguf" else family_of(place)) in _ASSISTANTS:
        checkpoint = open_checkpoint(place)
        try:
            return Drafter(checkpoint, gemma4_assistant.for_target(checkpoint.spec, target, place), None)
        except BaseException:
            checkpoint.close()
            raise
    raise UnsupportedModelError(
        f"{place}: is no drafting head that is read: these are folders and GGUF files of EAGLE-3 heads and of Gemma 4's"
        " assistants",
        hint="give what the head lies in, and not the model; a head of another kind cannot be used",
    )
