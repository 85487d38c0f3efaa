"""Opening of trained drafting heads for a model; the kind of a head is detected from its content."""

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
from ipex_lookahead.errors import InputError, LookaheadError, arg
from ipex_lookahead.files.paths import DRAFTER_FOLDER, is_drafter

BLOCKS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
"""Config keys that count MTP blocks."""
_ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant", gemma4_assistant.GGUF.architecture)
IN_A_MODEL = ("mtp",)
"""Kinds of heads that are stored among the model's own tensors. Heads in other files are copied when saving."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """An opened head that matches a model according to its headers.

    Attributes:
        kind: a key of ``KINDS``.
        checkpoint: the head's tensors; the owner of the drafter closes it.
        spec: the head; embedding and lm_head may be the model's.
        ids: int32 [outputs], the token of each output of its lm_head; None: all tokens of the model, in order.
    """

    kind: str
    checkpoint: Checkpoint
    spec: ModelSpec
    ids: npt.NDArray[np.int32] | None = None

    def tensors(self) -> list[Tensor]:
        """Return the weights that are not shared with the model, in the order of a step."""
        return [*self.spec.own_tensors()]


def model_with_block(config: Mapping[str, Any], max_context: int | None = None) -> ModelSpec:
    """Return the spec of ``config`` with its family's MTP block, even if the block is in another file."""
    return spec_for(counting(config, 1), max_context)


def counting(config: Mapping[str, Any], blocks: int) -> dict[str, Any]:
    """Return the config with this number of MTP blocks, if its family has any."""
    return {**config, **{key: blocks for key in BLOCKS if key in config}}


def open_drafter(path: Path, model: ModelSpec) -> Drafter:
    """Open a head for ``model`` without reading tensors.

    Args:
        path: a GGUF file or a folder.
        model: the target model, as returned by :func:`model_with_block`.

    Raises:
        InputError: if there is no head, or it was made for another model.
        ModelFormatError: if the file is invalid.
        UnsupportedModelError: if the head is not supported.
    """
    kind, where = kind_of(path)
    for name, opened in KINDS.items():
        if (found := opened(kind, where, model)) is not None:
            return replace(found, kind=name)
    raise InputError(
        f"{path}: has no head that drafts for a {model.model_type} model; supported are MTP blocks, EAGLE-3 heads and"
        " Gemma 4 assistants, as folders and GGUF files",
        hint=f"name another file with {arg('drafter')}, or leave it out",
    )


def drafter_of(checkpoint: Checkpoint, path: Path, named: Path | None = None) -> tuple[Drafter, Path] | None:
    """Find the head for a model; return it with its path, or None if there is none.

    The caller closes the head's checkpoint, unless it is the model's own.

    Args:
        checkpoint: the opened model.
        path: the model's path.
        named: path of the head; None: search the model's tensors, its folder and the files next to it.

    Raises:
        LookaheadError: as :func:`open_drafter`, if ``named`` cannot be used.
    """
    model = model_with_block(checkpoint.config)
    if named is not None:
        return open_drafter(named, model), named
    if checkpoint.spec.mtp is not None:
        return Drafter("mtp", checkpoint, checkpoint.spec.mtp), path
    for candidate in drafters_near(path):
        with contextlib.suppress(LookaheadError):  # made for another model or damaged; reported when it is loaded
            return open_drafter(candidate, model), candidate
    return None


def drafters_near(model: Path) -> list[Path]:
    """Return files and folders near a model that may hold a head: one saved with it, then by similarity of the name."""
    folder, stem = (model, "") if model.is_dir() else (model.parent, model.stem.lower())
    try:
        found = sorted(name for name in os.listdir(folder) if is_drafter(name) and name != model.name)
    except OSError:  # running the opened model does not require listing its folder
        return []

    def alike(name: str) -> int:
        return len(os.path.commonprefix([name.lower().removeprefix("mtp-"), stem]))

    kept = [model / DRAFTER_FOLDER] if (model / DRAFTER_FOLDER).is_dir() else []
    return kept + [folder / name for name in sorted(found, key=alike, reverse=True)]


def no_head(name: str, value: Any) -> InputError:
    """Return the error for a setting of heads if the model has none."""
    return InputError(
        f"{arg(name, value)} needs a drafting head, but no usable head was found for the model",
        hint=f"name one with {arg('drafter')}, or leave it out",
    )


def _block(kind: str, path: Path, model: ModelSpec) -> Drafter | None:
    """Open an MTP block, from a file of its own or among a model's tensors."""
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
    """Return the sizes that a head must share with its model, with keys for messages."""
    return {
        "family": model.model_type,
        "hidden size": model.hidden,
        "vocabulary": model.vocab,
        "number of layers": len(model.layers),
    }


def _check_sizes(path: Path, of: Mapping[str, Any], model: ModelSpec) -> None:
    """Raise InputError if a head was made for a model of other sizes; unknown sizes are not compared."""
    needed = sizes_of(model)
    wrong = [f"{word} {of[word]}, not {value}" for word, value in needed.items() if of.get(word, value) != value]
    if wrong:
        raise InputError(
            f"{path}: is a head for another model, with {'; '.join(wrong)}",
            hint=f"name a head that was trained for this model with {arg('drafter')}, or leave it out",
        )


def _check_one(path: Path, blocks: int) -> None:
    if blocks != 1:
        raise InputError(f"{path}: has {blocks} MTP blocks, one per depth; only heads with one block are supported")


def _eagle3(kind: str, path: Path, model: ModelSpec) -> Drafter | None:
    """Open an EAGLE-3 head; its vocabulary may be a subset of the model's."""
    opened: Eagle3Folder | Eagle3Gguf
    if kind == "safetensors" and is_eagle3(read_json(path / "config.json")):
        opened = Eagle3Folder(path, model)
    elif kind == "gguf" and _architecture_of(path) == "eagle3":
        opened = Eagle3Gguf(path, model)
    else:
        return None
    return Drafter("", opened, opened.spec, opened.ids)


def _gemma4_assistant(kind: str, path: Path, model: ModelSpec) -> Drafter | None:
    """Open the assistant of a Gemma 4 model."""
    if (_architecture_of(path) if kind == "gguf" else family_of(path)) not in _ASSISTANTS:
        return None
    checkpoint = READERS[kind](path)
    try:
        return Drafter("", checkpoint, gemma4_assistant.for_target(checkpoint.spec, model, path))
    except LookaheadError:
        checkpoint.close()
        raise


def _architecture_of(path: Path) -> Any:
    """Return ``general.architecture`` of a GGUF file, or None. Raises ModelFormatError."""
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
"""Kind of head -> function that opens it, given the kind of checkpoint, its path and the model; None: another kind."""
