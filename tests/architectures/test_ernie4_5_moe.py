"""ERNIE 4.5's mixtures: what GGUF files say otherwise or not at all, and blocks for drafting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ipex_lookahead.architectures.spec import Experts
from ipex_lookahead.checkpoints import GgufCheckpoint, open_checkpoint
from ipex_lookahead.errors import ModelFormatError
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, write_folder

PLAIN, UNTIL, _ = variants("ernie4_5_moe")


def test_a_file_shows_the_last_mixture_and_the_shared_size_by_its_tensors(tmp_path: Path) -> None:
    """The keys hold neither: the size that converters write is that of the dense MLP over the number of key heads."""
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("ernie4_5_moe", UNTIL)))
    file.close()
    kinds = [isinstance(block.feed_forward, Experts) for block in file.spec.layers]
    assert kinds == [False, True, False, True, False, False]
    assert file.metadata["ernie4_5-moe.expert_shared_feed_forward_length"] == 100
    assert {one.shared.up.weight.shape[0] for one in file.spec.mixtures if one.shared} == {3 * 52}


def test_shared_experts_of_no_whole_number_are_an_error(tmp_path: Path) -> None:
    def shorten(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in ("gate", "up"):
            tensors[f"blk.1.ffn_{name}_shexp.weight"] = tensors[f"blk.1.ffn_{name}_shexp.weight"][:-1]

    with pytest.raises(ModelFormatError, match="ffn_gate_shexp.weight.*47 rows"):
        GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("ernie4_5_moe", PLAIN), change=shorten))


def test_a_file_without_experts_is_an_error(tmp_path: Path) -> None:
    def drop(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        for layer in (1, 2):
            del tensors[f"blk.{layer}.ffn_gate_inp.weight"]

    with pytest.raises(ModelFormatError, match="experts in no layer"):
        GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("ernie4_5_moe", PLAIN), change=drop))


def test_blocks_for_drafting_are_read_past(tmp_path: Path) -> None:
    write_folder(tmp_path, build("ernie4_5_moe", PLAIN))
    tensors = load_file(tmp_path / "model.safetensors")
    more = {
        name: tensors["model.norm.weight"].clone() for name in ("model.mtp_emb_norm.0.weight", "model.mtp_block.0.x")
    }
    save_file(tensors | more, tmp_path / "model.safetensors", {"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.close()
    assert set(checkpoint.names()) == {tensor.name for tensor in checkpoint.spec.tensors()}


def test_a_correction_is_a_matrix_of_one_row_or_a_vector(tmp_path: Path) -> None:
    """Converters write the folder's shape, llama-quantize drops the leading 1."""
    name = "blk.1.exp_probs_b.bias"

    def flat(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        assert tensors[name].shape == (1, 6)
        tensors.update({key: values[0] for key, values in tensors.items() if "exp_probs_b" in key})

    values = []
    for change in (lambda *_: None, flat):
        file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("ernie4_5_moe", PLAIN), change=change))
        values.append(file.read("model.layers.1.mlp.gate.e_score_correction_bias").codes)
        file.close()
    assert values[0].shape == values[1].shape == (6,)
    assert values[0].tobytes() == values[1].tobytes()
