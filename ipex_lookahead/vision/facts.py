"""Facts about a model's vision part from headers and configs, without reading weights: for ``info`` and ``pull``."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.spec import Attention, Linear, named_tensors
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.errors import InputError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.vision.mmproj import MmprojFile, mmproj_of
from ipex_lookahead.vision.model import described
from ipex_lookahead.vision.preparation import Preparation, settings
from ipex_lookahead.vision.weights import TowerFolder

SIZES = ((224, 224), (640, 480), (1920, 1080), (4000, 3000))
"""Width and height of the pictures in the facts."""


def vision_facts(model: Path, hidden: int, mmproj: Path | None = None) -> dict[str, Any]:
    """Return facts of the vision part of a model that takes images.

    Args:
        model: its folder or GGUF file.
        hidden: its hidden size.
        mmproj: the GGUF file with the vision part; None: the one next to a GGUF file.

    Returns:
        ``tower``: its kind; ``layers``; ``parameters``; ``bytes`` in the file; ``file``, if it is an ``mmproj`` file;
        ``tokens``: ``"WIDTHxHEIGHT"`` -> number of tokens of a picture of this size; ``operations``: the same for
        floating-point operations of the tower. With ``problem``: why there is none.
    """
    found = mmproj or (None if model.is_dir() else mmproj_of(model, hidden))
    try:
        if found is not None:
            return _of_mmproj(found, hidden)
        if model.is_dir():
            return _of_folder(model, hidden)
    except (InputError, ModelFormatError, UnsupportedModelError) as error:
        return {"problem": str(error)}
    return {"problem": "there is no mmproj file with the vision part next to the model"}


def _of_mmproj(path: Path, hidden: int) -> dict[str, Any]:
    file = MmprojFile(path)
    file.close()
    if file.hidden != hidden:
        raise InputError(f"{path} is for models of hidden size {file.hidden}; this model has {hidden}")
    preparation = file.tower.preparation(str(path), file.settings, file.config)
    facts = _facts(file.tower.spec(file.config, hidden), preparation)
    return {"file": str(path), **facts, "bytes": path.stat().st_size}


def _of_folder(folder: Path, hidden: int) -> dict[str, Any]:
    path = folder / "config.json"
    raw = read_json(path)
    tower, config = described(raw, path)
    spec = tower.spec(config, hidden)
    files = TowerFolder(folder)
    try:
        size = files.stored_bytes(tensor for _, tensor in spec.named_tensors())
    finally:
        files.close()
    return {**_facts(spec, tower.preparation(*settings(folder), config)), "bytes": size}


def _facts(spec: EncoderSpec, preparation: Preparation) -> dict[str, Any]:
    tiles = {
        f"{width}x{height}": [prod(preparation.grid(tile)) for tile in preparation.plan(width, height).tiles]
        for width, height in SIZES
    }
    return {
        "tower": spec.model_type,
        "layers": len(spec.layers),
        "parameters": sum(prod(tensor.shape) for _, tensor in spec.named_tensors()),
        "tokens": {size: sum(counts) for size, counts in tiles.items()},
        "operations": {
            size: sum(operations(spec, preparation, count) for count in counts) for size, counts in tiles.items()
        },
    }


def operations(spec: EncoderSpec, preparation: Preparation, tokens: int) -> int:
    """Return the floating-point operations of the matrices and of attention, for a tile of ``tokens``."""
    patches = tokens * preparation.merge**2
    values = patches * preparation.patch**2 * 3 * preparation.frames
    total = 0
    for number, chain in enumerate(spec.chains):
        for link in chain:
            if isinstance(link, Linear):
                rows = values // link.weight.shape[1] if number == 0 else tokens
                total += 2 * rows * prod(link.weight.shape)
                values = rows * link.weight.shape[0]
    for block in spec.layers:
        weights = (prod(tensor.shape) for _, tensor in named_tensors(block) if len(tensor.shape) == 2)
        total += 2 * patches * sum(weights)
        if isinstance(block.mixer, Attention):
            total += 4 * patches * patches * block.mixer.heads * block.mixer.head_dim
    return total
