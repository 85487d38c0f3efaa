"""Qwen3-Next: matrices fused by heads of keys, of folders, quantised ones and both generations of GGUF files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead.architectures.spec import Attention, GatedDeltaNet
from ipex_lookahead.checkpoints import GgufCheckpoint, SafetensorsCheckpoint
from ipex_lookahead.checkpoints.quantized_layers import rows_of
from ipex_lookahead.formats import dequantize
from tests.support.family_configs import spec_of
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, write_folder

SIZES: dict[str, Any] = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
}  # fmt: skip
FIRST = variants("qwen3_next")[0]


def projections(net: GatedDeltaNet) -> dict[str, Any]:
    return {"inputs": net.inputs, "gate": net.gate, "beta": net.beta, "steps": net.steps}


@pytest.mark.parametrize("variant", variants("qwen3_next"), ids=lambda one: one.name)
def test_fused_rows_are_those_that_transformers_takes(tmp_path: Path, variant: Any) -> None:
    model = build("qwen3_next", variant)
    with closing(SafetensorsCheckpoint(write_folder(tmp_path, model))) as file:
        for block, theirs in zip(file.spec.layers, model.model.layers, strict=True):
            if not isinstance(block.mixer, GatedDeltaNet):
                continue
            net = theirs.linear_attn
            weights = [one.weight.detach().T[None] for one in (net.in_proj_qkvz, net.in_proj_ba)]
            q, k, v, z, b, a = (one.flatten(2)[0].T.numpy() for one in net.fix_query_key_value_ordering(*weights))
            expected = {"inputs": np.concatenate([q, k, v]), "gate": z, "beta": b, "steps": a}
            for name, linear in projections(block.mixer).items():
                got = dequantize(file.read(linear.weight.name))
                assert np.array_equal(got, expected[name]), name
                fused = (net.in_proj_qkvz if name in ("inputs", "gate") else net.in_proj_ba).weight
                rows = rows_of(linear.weight)  # of quantised layers
                assert np.array_equal(fused.detach().numpy()[rows], expected[name]), name


def test_the_first_gguf_files_are_read(tmp_path: Path) -> None:
    """They have the fused matrix as the folder does, as ``ssm_in``."""
    model = build("qwen3_next", FIRST)
    state = model.state_dict()

    def fuse(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        for i in range(model.config.num_hidden_layers):
            if tensors.pop(f"blk.{i}.attn_qkv.weight", None) is None:
                continue
            del tensors[f"blk.{i}.attn_gate.weight"]
            fused = state[f"model.layers.{i}.linear_attn.in_proj_qkvz.weight"]
            tensors[f"blk.{i}.ssm_in.weight"] = fused.to(torch.float32).numpy()
        del keys["qwen3next.attention.recurrent_layers"], keys["qwen3next.full_attention_interval"]

    new, old = write_gguf(tmp_path / "new.gguf", model, quant="Q8_0"), tmp_path / "old.gguf"
    write_gguf(old, model, quant="Q8_0", change=fuse)
    with closing(GgufCheckpoint(new)) as one, closing(GgufCheckpoint(old)) as other:
        assert list(one.names()) == list(other.names())
        assert one.config == other.config
        for name in one.names():
            arrays = zip(one.read(name).arrays(), other.read(name).arrays(), strict=True)
            assert all(np.array_equal(a, b) for (_, a), (_, b) in arrays), name


def test_every_row_of_the_fused_matrices_is_read_once(tmp_path: Path) -> None:
    """Of queries and their gates too, where rows of quantised layers were once too few."""
    spec = spec_of(
        tmp_path, "qwen3_next", num_hidden_layers=4, linear_num_key_heads=3, linear_num_value_heads=6, **SIZES
    )
    net, attention = spec.layers[0].mixer, spec.layers[3].mixer
    assert isinstance(net, GatedDeltaNet)
    assert isinstance(attention, Attention)
    assert attention.gate is not None
    for pair in ((net.inputs, net.gate), (net.beta, net.steps), (attention.q, attention.gate)):
        whole = np.arange(pair[0].weight.hf.shape[0])
        taken = [whole[rows_of(one.weight)] for one in pair]
        assert [len(rows) for rows in taken] == [one.weight.shape[0] for one in pair]
        assert sorted(np.concatenate(taken)) == list(whole)
