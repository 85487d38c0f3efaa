"""Granite 4: dense, with recurrent layers, with experts, and what is none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.checkpoints import open_checkpoint
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build


def test_its_files_are_granites(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the converter notes sizes of experts and recurrent layers: there are none."""
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", build("granitemoehybrid", variants("granitemoehybrid")[0])))
    file.close()
    assert file.config["model_type"] == "granite"
    assert "granite.expert_shared_feed_forward_length" in file.metadata
    assert "granite.ssm.inner_size" in file.metadata
    assert not file.unknown_keys
    assert not caplog.records
