"""Files of trained heads, opened for a model: each kind of head is recognised by what lies there, never by its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec, spec_for
from ipex_lookahead.architectures.families import gemma4_assistant
from ipex_lookahead.architectures.spec import Linear, Tensor
from ipex_lookahead.checkpoints import READERS, Checkpoint, family_of, kind_of
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.eagle3 import Eagle3Folder, Eagle3Gguf, is_eagle3
from ipex_lookahead.checkpoints.gguf_block import GgufBlock
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.checkpoints.kept_drafter import KEPT
from ipex_lookahead.errors import InputError, LookaheadError, arg
from ipex_lookahead.files.paths import is_drafter

BLOCKS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
"""Keys of configs that count blocks for drafting."""
_ASSISTANTS = ("gemma4_assistant", gemma4_assistant.GGUF.architecture)
IN_A_MODEL = ("mtp",)
"""Kinds of heads whose tensors a model's own files hold, among the others; the files of others go along with them."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """An opened head that is for a model, by all that its headers say.

    Attributes:
        kind: a key of ``KINDS``.
        checkpoint: its tensors; whoever has the drafter closes it.
        spec: the head, whose embedding and lm_head may be the model's.
        ids: int32 [outputs], the token that each output of its lm_head stands for; None: all of the model's, in order.
    """

    kind: str
    checkpoint: Checkpoint
    spec: ModelSpec
    ids: npt.NDArray[np.int32] | None = None

    def tensors(self) -> list[Tensor]:
        """The weights that it has of its own, in the order of a step."""
        return [*self.spec.own_tensors()]


def model_with_block(config: Mapping[str, Any], max_context: int | None = None) -> ModelSpec:
    """The model that ``config`` describes, with the block for drafting that its family has, wherever that lies."""
    return spec_for(counting(config, 1), max_context)


def counting(config: Mapping[str, Any], blocks: int) -> dict[str, Any]:
    """The config with that number of blocks for drafting, where its family has some."""
    return {**config, **{key: blocks for key in BLOCKS if key in config}}


def open_drafter(path: Path, model: ModelSpec) -> Drafter:
    """Open a head for ``model``, as :func:`model_with_block` gives it. Reads no tensor.

    Args:
        path: a GGUF file, or a folder.
        model: what the head is to draft for.

    Raises:
        InputError: it holds no head, or one for another model: what was got and what is needed are named.
        ModelFormatError, UnsupportedModelError: it cannot be read.
    """
    kind, where = kind_of(path)
    for name, opened in KINDS.items():
        if (found := opened(kind, where, model)) is not None:
            return replace(found, kind=name)
    raise InputError(
        f"{path}: holds no head that drafts for a {model.model_type} model; read are blocks for drafting (MTP), EAGLE-3"
        " heads and Gemma 4's assistants, folders and GGUF files",
        hint=f"name another file with {arg('drafter')}, or leave it out",
    )


def drafter_of(checkpoint: Checkpoint, path: Path, named: Path | None = None) -> tuple[Drafter, Path] | None:
    """The head that a model would draft with, and where it lies; None: there is none.

    Args:
        checkpoint: the model's, opened.
        path: of the model.
        named: the head's; None: the model's own, or one beside it.

    Raises as :func:`open_drafter` for one that was named. Whoever has one of another path closes its checkpoint.
    """
    model = model_with_block(checkpoint.config)
    if named is not None:
        return open_drafter(named, model), named
    if checkpoint.spec.mtp is not None:
        return Drafter("mtp", checkpoint, checkpoint.spec.mtp), path
    for beside in adjacent_drafters(path):
        with contextlib.suppress(LookaheadError):  # another model's, or damaged, of which loading tells
            return open_drafter(beside, model), beside
    return None


def adjacent_drafters(model: Path) -> list[Path]:
    """What may hold a head, in a model's folder or beside its file: one saved with it, then those alike in name."""
    folder, stem = (model, "") if model.is_dir() else (model.parent, model.stem.lower())
    try:
        found = sorted(name for name in os.listdir(folder) if is_drafter(name) and name != model.name)
    except OSError:  # the model itself was opened: its folder need not be listed to run it
        return []

    def alike(name: str) -> int:
        return len(os.path.commonprefix([name.lower().removeprefix("mtp-"), stem]))

    kept = [model / KEPT] if (model / KEPT).is_dir() else []
    return kept + [folder / name for name in sorted(found, key=alike, reverse=True)]


def no_head(name: str, value: Any) -> InputError:
    """The error for a setting of heads, of a model that has none that can be used."""
    return InputError(
        f"{arg(name, value)} is of a head that drafts, and the model brings none that can be used",
        hint=f"name one with {arg('drafter')}, or leave it out",
    )


def _block(kind: str, path: Path, model: ModelSpec) -> Drafter | None:
    """A block for drafting (MTP), in a file of its own or among a model's tensors."""
    if model.mtp is None:
        return None
    if kind == "gguf":
        block = GgufBlock(path, model)
        try:
            if not block.blocks:
                block.close()
                return None
            _check_sizes(path, block.of, model)
            _check_one(path, block.blocks)
            block.check()
        except LookaheadError:
            block.close()
            raise
        return Drafter("", block, model.mtp)
    checkpoint = READERS[kind](path)
    spec = getattr(checkpoint, "spec", None)
    try:
        if spec is None or spec.mtp is None:
            checkpoint.close()
            return None
        _check_sizes(path, sizes_of(spec), model)
    except LookaheadError:
        checkpoint.close()
        raise
    head = replace(spec.mtp, embedding=model.embedding, head=Linear(model.head_weight), max_context=model.max_context)
    return Drafter("", checkpoint, head)


def sizes_of(model: ModelSpec) -> dict[str, Any]:
    """What a head and its model must have in common, in words for people."""
    return {
        "family": model.model_type,
        "hidden size": model.hidden,
        "vocabulary": model.vocab,
        "number of layers": len(model.layers),
    }


def _check_sizes(path: Path, of: Mapping[str, Any], model: ModelSpec) -> None:
    """Raise InputError where a head is for a model of other sizes; what it does not say is not compared."""
    needed = sizes_of(model)
    wrong = [f"{word} {of[word]}, not {value}" for word, value in needed.items() if of.get(word, value) != value]
    if wrong:
        raise InputError(
            f"{path}: is a head for another model, of {'; '.join(wrong)}",
            hint=f"name the head that was trained for this model with {arg('drafter')}, or leave it out",
        )


def _check_one(path: Path, blocks: int) -> None:
    if blocks != 1:
        raise InputError(f"{path}: holds {blocks} blocks for drafting, one a depth; heads of one block are read")


def _eagle3(kind: str, path: Path, model: ModelSpec) -> Drafter | None:
    """An EAGLE-3 head, whose own vocabulary may be a part of the model's."""
    opened: Eagle3Folder | Eagle3Gguf
    if kind == "safetensors" and is_eagle3(read_json(path / "config.json")):
        opened = Eagle3Folder(path, model)
    elif kind == "gguf" and _architecture_of(path) == "eagle3":
        opened = Eagle3Gguf(path, model)
    else:
        return None
    return Drafter("", opened, opened.spec, opened.ids)


def _gemma4_assistant(kind: str, path: Path, model: ModelSpec) -> Drafter | None:
    """The assistant of a Gemma 4 model."""
    if (_architecture_of(path) if kind == "gguf" else family_of(path)) not in _ASSISTANTS:
        return None
    checkpoint = READERS[kind](path)
    try:
        return Drafter("", checkpoint, gemma4_assistant.for_target(checkpoint.spec, model, path))
    except LookaheadError:
        checkpoint.close()
        raise


def _architecture_of(path: Path) -> Any:
    """``general.architecture`` of a GGUF file, None where it says nothing. Raises ModelFormatError."""
    file = GgufParts(path)
    try:
        return file.scalar("general.architecture")
    finally:
        file.close()


KINDS: Mapping[str, Callable[[str, Path, ModelSpec], Drafter | None]] = {
    "eagle3": _eagle3,
    "gemma4_assistant": _gemma4_assistant,
    "mtp": _block,
}
"""Kind of head -> opens it, given the kind of checkpoint, where it lies and the model; None where it is none."""
