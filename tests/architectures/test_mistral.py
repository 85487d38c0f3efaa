"""Mistral in GGUF files, which call themselves llama: those whose hidden size the heads do not divide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import open_checkpoint
from tests.support.family_configs import opened
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, distance, logits, text

UNEVEN = next(one for one in variants("mistral") if one.name == "uneven")


@pytest.mark.parametrize(("engine", "far"), [("native", 1e-2), ("torch", 1e-4)])
def test_heads_that_do_not_divide_the_hidden_size(tmp_path: Path, engine: str, far: float) -> None:
    """They have a size of their own in the file. transformers' Llama takes no such model, its Mistral does."""
    model = build("mistral", UNEVEN)
    assert model.config.hidden_size % model.config.num_attention_heads
    file = write_gguf(tmp_path / "m.gguf", model)
    ids = text(model)
    options: dict[str, Any] = {"engine": engine, "threads": 1, "progress": False}
    loaded = AutoModelForCausalLM.from_pretrained(file, **options)
    assert distance(loaded(torch.from_numpy(ids[None]).long()).logits[0].numpy(), logits(model, ids)) < far
    assert loaded.config.model_type == "mistral"
    loaded.save_low_bit(tmp_path / "saved")
    checkpoint = open_checkpoint(tmp_path / "saved")
    checkpoint.close()
    assert (checkpoint.config["model_type"], checkpoint.config["head_dim"]) == ("mistral", 24)


def test_others_of_the_architecture_are_what_they_were(tmp_path: Path) -> None:
    assert opened(tmp_path, "mistral", {}).config["model_type"] == "llama"
    assert opened(tmp_path, "mixtral", {}).config["model_type"] == "mixtral"
