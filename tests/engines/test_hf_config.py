"""Configs that our engine can run and that transformers' own class refuses."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, ModelFormatError, UnsupportedModelError
from ipex_lookahead.system.compat import RELEASE
from tests.support.family_table import variants
from tests.support.tiny_families import build, write_folder


@pytest.mark.skipif(RELEASE < (5, 0), reason="this release of transformers checks no configs")
def test_a_config_that_transformers_refuses_loads_as_with_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Granite 4 with attention alone: its class checks sizes of recurrent layers that are not there."""
    path = write_folder(tmp_path / "m", build("granitemoehybrid", variants("granitemoehybrid")[0])) / "config.json"
    ids = torch.tensor([[5, 9, 33, 2]])
    options = {"max_new_tokens": 4, "do_sample": False}
    plain = AutoModelForCausalLM.from_pretrained(path.parent, progress=False).generate(ids, **options)
    assert not caplog.records
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "mamba_expand": 1}), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        model = AutoModelForCausalLM.from_pretrained(path.parent, progress=False)
    why = "The dimensions for the Mamba head state do not match"
    assert f"transformers' granitemoehybrid refuses this config: {why}" in caplog.text
    assert model.config.hidden_size == config["hidden_size"]
    assert torch.equal(model.generate(ids, **options), plain)
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=why) as error:
        AutoModelForCausalLM.from_pretrained(path.parent, engine="torch", progress=False)
    assert str(path.parent) in str(error.value)
