"""A family's config, as small as it may be, read from a file; and a GGUF file of the family with keys changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import ModelSpec, spec_for
from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.checkpoints.config_json import checked_config, read_json
from tests.support.family_table import SIZES, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build


def read_config(path: Path) -> dict[str, Any]:
    """A ``config.json`` as a folder's is read: the checked config. Raises as that does."""
    return checked_config(read_json(path), path)


def checked(folder: Path, model_type: str, *without: str, **values: Any) -> dict[str, Any]:
    """The checked config of a ``config.json`` with the tiny sizes and these values; keys in ``without`` left out."""
    raw = {"model_type": model_type, **SIZES, **values}
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in raw.items() if key not in without}), encoding="utf-8")
    return read_config(path)


def windows(spec: ModelSpec) -> list[int | None]:
    """The window of each layer."""
    return [block.mixer.window for block in spec.layers]


def spec_of(folder: Path, model_type: str, *without: str, **values: Any) -> ModelSpec:
    """The spec of :func:`checked`."""
    return spec_for(checked(folder, model_type, *without, **values))


def opened(folder: Path, model_type: str, metadata: dict[str, Any]) -> GgufCheckpoint:
    """The family's plainest GGUF file with more metadata, opened (and closed again: its config and spec stay)."""
    file = GgufCheckpoint(write_gguf(folder / "m.gguf", build(model_type, variants(model_type)[0]), metadata=metadata))
    file.close()
    return file
