"""Muse-Glimmer: which layers see all, norms and factors, and what its GGUF files hold of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints import GgufCheckpoint, open_checkpoint
from ipex_lookahead.checkpoints.hf_folder import write_hf_folder
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows
from tests.support.family_table import FULL, SLIDING, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, write_folder

TEXT = "muse_glimmer_text"


@pytest.mark.parametrize(("layers", "full"), [(4, [3]), (5, [0, 4]), (7, [2, 6]), (1, [0])])
def test_layers_that_see_all_are_counted_from_the_last_one(tmp_path: Path, layers: int, full: list[int]) -> None:
    spec = spec_of(tmp_path, TEXT, num_hidden_layers=layers)
    assert [i for i, window in enumerate(windows(spec)) if window is None] == full
    assert [i for i, block in enumerate(spec.layers) if block.mixer.rope is None] == full
    assert set(windows(spec)) <= {None, 2048}


def test_the_norms_and_factors_of_a_config(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, TEXT, rms_norm_eps=1e-4)
    block = spec.layers[0]
    assert (spec.embedding_norm, spec.final_norm.epsilon, spec.final_norm.weight.hf.offset) == (1e-4, 1e-4, 0.0)
    assert (block.mixer_norm.epsilon, block.mixer_norm.weight.hf.offset) == (1e-4, 1.0)
    assert (block.mixer_after.epsilon, block.mixer_after.weight.hf.offset) == (1e-8, 1.0)
    assert (block.feed_forward_after.epsilon, block.feed_forward_norm.epsilon) == (1e-8, 1e-4)
    assert (block.mixer.q_norm.weight.constant, block.mixer.k_norm.weight.constant) == (3.87, 1.0)
    assert (spec.logit_softcap, spec.logit_multiplier) == (20.0, 0.19611613513818404)


def test_bases_of_layers_are_the_models_or_0(tmp_path: Path) -> None:
    """transformers looks only at whether a base is 0."""
    spec = spec_of(tmp_path, TEXT, rope_theta=500.0, layer_rope_theta=[500.0, 0], layer_types=[FULL, SLIDING])
    assert [block.mixer.rope is None for block in spec.layers] == [False, True]
    with pytest.raises(UnsupportedModelError, match="layer_rope_theta has a base of 700; transformers uses rope_theta"):
        checked(tmp_path, TEXT, rope_theta=500.0, layer_rope_theta=[700.0, 0])
    with pytest.raises(ModelFormatError, match=r"layer_rope_theta.*names 1 layers"):
        checked(tmp_path, TEXT, layer_rope_theta=[0])


def test_weights_that_folders_do_not_have(tmp_path: Path) -> None:
    """Norms of queries and keys: in no folder, neither ours nor a written one; a GGUF file has its own."""
    model = build(TEXT, variants(TEXT)[0])
    folder = write_folder(tmp_path / "folder", model)
    checkpoint = open_checkpoint(folder)
    name = "model.layers.1.self_attn.q_norm.weight"
    assert name not in load_file(folder / "model.safetensors")
    assert name in checkpoint.names()
    assert (checkpoint.info(name).shape, checkpoint.info(name).format) == ((16,), "fp32")
    assert np.array_equal(checkpoint.read(name).codes, np.full(16, 1.5, np.float32))
    written = load_file(write_hf_folder(checkpoint, tmp_path / "out", tokenizer=False) / "model.safetensors")
    checkpoint.close()
    assert {*written} == {*load_file(folder / "model.safetensors")}

    def other(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["blk.1.attn_q_norm.weight"] *= 2

    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", model, change=other))
    assert np.array_equal(file.read(name).codes, np.full(16, 1.5, np.float32) * 2)
    file.close()


def test_a_gguf_file_has_rope_where_it_has_windows(tmp_path: Path) -> None:
    file = opened(tmp_path, TEXT, {"muse-glimmer.rope.freq_base_swa": 700.0})
    assert [window is None for window in windows(file.spec)] == [True, False, False, False, True]
    assert file.config["layer_rope_theta"] == [0.0, 700.0, 700.0, 700.0, 0.0]
    assert file.config["post_norm_eps"] == 1e-8  # which no key says
    assert spec_for(file.config).layers[1].mixer.rope is not None
    model = build(TEXT, variants(TEXT)[0])
    path = write_gguf(tmp_path / "m.gguf", model, change=lambda keys, _: keys.pop("muse-glimmer.logit_scale"))
    with pytest.raises(ModelFormatError, match="logit_scale.*is missing"):
        GgufCheckpoint(path)
