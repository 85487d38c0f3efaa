"""Where models are kept on this machine: our own cache folder, and the hub's."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$IPEX_LOOKAHEAD_CACHE``, else ``$XDG_CACHE_HOME/ipex-lookahead``, else ``~/.cache/ipex-lookahead``."""
    if chosen := os.environ.get("IPEX_LOOKAHEAD_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ipex-lookahead"


def hub_cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder in which the hub's library keeps models: ``cache_dir``, else what HF_HUB_CACHE and HF_HOME say."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()
