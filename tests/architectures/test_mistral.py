"""Mistral in GGUF files, which call themselves llama: those whose hidden size the heads do not divide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import open_checkpoint
from tests.support.family_table import VOCAB, Variant, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, config_of, distance, logits, text, with_weights, write_folder

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


@pytest.mark.parametrize("window", [1, 16, 63, 64, 255, 256, 257])
@pytest.mark.rotating(4)
def test_windows_over_the_edges_of_pages_and_blocks(tmp_path: Path, window: int) -> None:
    """Pages hold 64 positions, attention reads blocks of 256."""
    wide = Variant("window", {"num_hidden_layers": 1, "sliding_window": window, "max_position_embeddings": 512})
    model = with_weights(config_of("mistral", wide))
    ids = np.random.default_rng(window).integers(3, VOCAB, 320).astype(np.int32)
    loaded = AutoModelForCausalLM.from_pretrained(write_folder(tmp_path, model), threads=1, progress=False)
    assert distance(loaded(torch.from_numpy(ids[None]).long()).logits[0].numpy(), logits(model, ids)) < 1e-2
