"""The checkpoint that most tests of the native engine run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ragged on purpose: 72 hidden, heads of 24, 105 tokens, 100 in the MLP."""
    return write_tiny_llama(
        tmp_path_factory.mktemp("ragged"),
        vocab=105,
        hidden=72,
        layers=2,
        heads=3,
        kv_heads=1,
        head_dim=24,
        intermediate=100,
        context=700,
        seed=5,
    )
