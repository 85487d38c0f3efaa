"""Qwen2-MoE: the expert for every row and its gate, layers without experts, windows that releases read differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures.spec import Experts, GatedMlp
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows
from tests.support.family_engines import in_chunks, load
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build

SIZES: dict[str, Any] = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
}  # fmt: skip


def test_the_shared_expert_has_a_size_and_a_gate_of_its_own(tmp_path: Path) -> None:
    mixture = spec_of(tmp_path, "qwen2_moe", **SIZES).layers[0].feed_forward
    assert isinstance(mixture, Experts)
    assert mixture.shared is not None
    assert mixture.shared_gate is not None
    assert mixture.shared.up.weight.shape == (80, 64)
    assert mixture.experts[0].up.weight.shape == (48, 64)
    assert mixture.shared_gate.weight.shape == (1, 64)
    assert mixture.shared_gate.weight.name in spec_of(tmp_path, "qwen2_moe", **SIZES).routers()


def test_layers_without_experts(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "qwen2_moe", **{**SIZES, "num_hidden_layers": 4, "decoder_sparse_step": 2})
    assert [type(block.feed_forward) for block in spec.layers] == [GatedMlp, Experts, GatedMlp, Experts]
    with pytest.raises(ModelFormatError, match="mlp_only_layers at byte .* names layer 7"):
        checked(tmp_path, "qwen2_moe", mlp_only_layers=[7], **SIZES)


def test_windows_must_be_named_by_layer(tmp_path: Path) -> None:
    window = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    with pytest.raises(UnsupportedModelError, match="releases of transformers differ"):
        checked(tmp_path, "qwen2_moe", **window, **SIZES)
    named = ["full_attention", "sliding_attention"]
    assert windows(spec_of(tmp_path, "qwen2_moe", layer_types=named, **window, **SIZES)) == [None, 9]
    assert windows(spec_of(tmp_path, "qwen2_moe", sliding_window=9, **SIZES)) == [None, None]


def test_sizes_that_a_file_does_not_say_follow_from_the_dense_one(tmp_path: Path) -> None:
    file = opened(tmp_path, "qwen2_moe", {})
    assert (file.config["moe_intermediate_size"], file.config["shared_expert_intermediate_size"]) == (64, 80)
    assert not file.config["norm_topk_prob"]
    assert not file.unknown_keys


def test_the_gate_may_lie_in_a_file_as_a_vector(tmp_path: Path) -> None:
    """As llama-quantize writes a matrix of one row."""
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    name, model = "blk.0.ffn_gate_inp_shexp.weight", build("qwen2_moe", variants("qwen2_moe")[0])
    shapes = []

    def logits_of(file: str, *shape: int) -> Any:
        def reshape(_: dict[str, Any], tensors: dict[str, Any]) -> None:
            tensors[name] = tensors[name].reshape(*shape, -1)
            shapes.append(tensors[name].ndim)

        return in_chunks(load(write_gguf(tmp_path / file, model, change=reshape)), np.arange(20, dtype=np.int32), [20])

    assert np.array_equal(logits_of("matrix.gguf", 1), logits_of("vector.gguf"))
    assert shapes == [2, 1]
