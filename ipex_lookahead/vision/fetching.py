"""Download of the vision part of a GGUF model of the hub."""

from __future__ import annotations

from pathlib import Path

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.hub import HubOptions, vision_part_of
from ipex_lookahead.hub.progress import Observe, unobserved


def fetch_vision_part_of(
    name: str, model: Path, *, options: HubOptions | None = None, observe: Observe = unobserved
) -> Path | None:
    """Download the vision part of a downloaded model, if it is a GGUF file of a model that takes images.

    Args:
        name: its name on the hub.
        model: its file or folder.
        options: how files are downloaded.
        observe: receives the progress.

    Returns:
        The file, or None: the model takes no images, or has its vision part in its folder.

    Raises InputError if the repository has none, DownloadError if it cannot be downloaded.
    """
    if not takes_images(model):
        return None
    return vision_part_of(name, progress=False, options=options, observe=observe)


def takes_images(model: Path) -> bool:
    """Return whether a file is a GGUF model that takes images."""
    if model.is_dir():
        return False
    try:
        checkpoint = open_checkpoint(model)
    except LookaheadError:  # another kind of file, or one that cannot run
        return False
    checkpoint.close()
    return checkpoint.spec.images is not None
