"""The file with a model's vision part that a caller names, checked before and after the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ipex_lookahead.engines.api import Engine, TakesImages
from ipex_lookahead.errors import InputError, arg
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.vision.mmproj import MmprojFile


@dataclass(frozen=True, slots=True)
class VisionFile:
    """An ``mmproj`` file.

    Attributes:
        path: the file.
        hidden: hidden size of the models that it is for.
    """

    path: Path
    hidden: int

    @classmethod
    def of(cls, name: str | PathLike[str], *, progress: bool) -> VisionFile:
        """Return the file of a path, or of ``owner/repo:FILE`` on the hub, which is downloaded if necessary.

        Raises:
            InputError: there is no such file, or it is a folder.
            DownloadError: the download failed.
            ModelFormatError, UnsupportedModelError: it is not an ``mmproj`` file, or of an unsupported kind.
        """
        path = resolve_model(str(name), progress=progress).absolute()
        if path.is_dir():
            raise InputError(f"{arg('mmproj', str(name))} is a folder; it must be a .gguf file")
        file = MmprojFile(path)
        file.close()
        return cls(path, file.hidden)

    def check(self, engine: Engine) -> None:
        """Raise InputError if the engine's model takes no images, or is of another size."""
        takes = engine.images if isinstance(engine, TakesImages) else None
        if takes is None:
            what = "this model" if isinstance(engine, TakesImages) else f"the {engine.name} engine"
            raise InputError(f"{arg('mmproj', str(self.path))}: {what} takes no images", hint="leave it out")
        if takes.hidden != self.hidden:
            raise InputError(
                f"{self.path} is for models of hidden size {self.hidden}; this model has {takes.hidden}",
                hint="use the mmproj file from the model's own repository",
            )
