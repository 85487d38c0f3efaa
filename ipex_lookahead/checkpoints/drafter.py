"""A drafting head that has a folder or file of its own, opened for the model that it drafts for."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.checkpoints import kind_of
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.eagle3 import Eagle3Folder, is_eagle3
from ipex_lookahead.errors import UnsupportedModelError


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
    raise UnsupportedModelError(
        f"{place}: is no drafting head that is read: these are folders of EAGLE-3 heads",
        hint="give the head's folder, not the model's; a head of another kind cannot be used",
    )
