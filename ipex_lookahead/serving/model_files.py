"""Facts of a model's files on this machine, without loading it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_lookahead.checkpoints import family_of, open_checkpoint
from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.hub import HubOptions, parse_name, resolve_model
from ipex_lookahead.hub.choosing import parts_of, type_in

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        path: the GGUF file or folder.
        size: total size in bytes.
        modified: time of the last change, in seconds since 1970.
        digest: the SHA-256 of a GGUF file of the hub; for other models a hash that changes with their files.
        family: the model type of a folder's config; "" for GGUF files.
        kind: the type in a GGUF file's name, such as "Q4_K_M"; "" if there is none.
    """

    path: Path
    size: int
    modified: float
    digest: str
    family: str
    kind: str

    @classmethod
    def find(cls, source: str) -> ModelFiles | None:
        """Return the files of a path or of a downloaded model; None if there are none. Does not use the network."""
        try:
            if not source:
                return None
            named = parse_name(source)
            options = HubOptions() if named is None or isinstance(named, Path) else HubOptions(local_files_only=True)
            if named is None:
                from ipex_lookahead.hub.embedded import DEFAULT, embedded_files

                path = embedded_files(DEFAULT)[0]
            else:
                path = resolve_model(source, progress=False, options=options)
            return cls._of(path)
        except (LookaheadError, OSError):
            return None

    @classmethod
    def _of(cls, path: Path) -> ModelFiles:
        if path.is_dir():
            files = [file for file in path.iterdir() if file.is_file()]
        else:
            files = [path.with_name(Path(part).name) for part in parts_of(path.name)]
        states = [file.stat() for file in files]
        size = sum(state.st_size for state in states)
        modified = max((state.st_mtime for state in states), default=path.stat().st_mtime)
        stored = path.resolve().name
        own = hashlib.sha256(f"{path.absolute()} {size} {modified}".encode()).hexdigest()
        digest = stored if _SHA256.fullmatch(stored) else own
        family = (family_of(path) or "") if path.is_dir() else ""
        return cls(path, size, modified, digest, family, "" if path.is_dir() else type_in(path.name) or "")

    def config(self) -> Mapping[str, Any]:
        """Return the model's config; empty for a model that cannot be read."""
        try:
            checkpoint = open_checkpoint(self.path)
        except LookaheadError:
            return {}
        try:
            return dict(checkpoint.config)
        finally:
            checkpoint.close()
