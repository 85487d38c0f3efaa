"""Fixtures that every test folder may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The optional folder of shared material (prompts, golden ids, tiny models); skips with a reason without it."""
    folder = Path(os.environ.get("IPEX_LOOKAHEAD_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared material at {folder} (set IPEX_LOOKAHEAD_SHARED)")
    return folder
