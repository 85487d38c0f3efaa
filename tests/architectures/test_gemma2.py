"""Gemma 2: what its config's keys become, what is refused, and what a GGUF file leaves unsaid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.architectures.rules import fill_query_scalar
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows

SIZES = {"head_dim": 24, "query_pre_attn_scalar": 9, "sliding_window": 7, "num_hidden_layers": 4}


def test_every_switch_is_in_the_spec(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "gemma2", **SIZES)
    block = spec.layers[0]
    assert windows(spec) == [7, None, 7, None]
    assert (block.mixer.scale, block.mixer.softcap) == (1 / 3, 50.0)
    assert (spec.logit_softcap, spec.embedding_multiplier, spec.tied) == (30.0, math.sqrt(64), True)
    assert block.feed_forward.activation.kind == "gelu_tanh"
    names = [
        norm.weight.gguf.name
        for norm in (block.mixer_norm, block.mixer_after, block.feed_forward_norm, block.feed_forward_after)
    ]
    assert names == [f"blk.0.{one}.weight" for one in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")]
    norms = [tensor for tensor in spec.tensors() if not tensor.is_matrix]
    assert {(tensor.hf.offset, tensor.gguf.offset) for tensor in norms} == {(1.0, 0.0)}
    assert len(norms) == 4 * 4 + 1


def test_null_is_no_cap_and_no_window(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        "gemma2",
        **SIZES | {"sliding_window": None},
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    )
    assert windows(spec) == [None] * 4
    assert spec.layers[0].mixer.softcap is spec.logit_softcap is None


def test_what_a_config_leaves_out_is_as_transformers_has_it(tmp_path: Path) -> None:
    config = checked(tmp_path, "gemma2", "num_key_value_heads", "eos_token_id", "rms_norm_eps", num_attention_heads=8)
    assert (config["num_key_value_heads"], config["head_dim"], config["query_pre_attn_scalar"]) == (4, 256, 256)
    assert (config["eos_token_id"], config["sliding_window"], config["rms_norm_eps"]) == (1, 4096, 1e-6)


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"layer_types": ["full_attention"] * 5}, ModelFormatError, "names 5 layers; there are 4"),
        ({"layer_types": ["full_attention", "chunked_attention"] * 2}, ModelFormatError, "must be a list of"),
        ({"layer_types": ["sliding_attention"] * 4, "sliding_window": None}, ModelFormatError, "no sliding_window"),
        ({"hidden_activation": "gelu"}, UnsupportedModelError, "hidden_activation is 'gelu'.*gelu_pytorch_tanh"),
        ({"query_pre_attn_scalar": 0}, ModelFormatError, "query_pre_attn_scalar.*0"),
        ({"attn_logit_softcapping": 0.0}, ModelFormatError, "attn_logit_softcapping.*0.0"),
        ({"sliding_window": 0}, ModelFormatError, "sliding_window.*from 1"),
        ({"use_bidirectional_attention": True}, UnsupportedModelError, "use_bidirectional_attention is True"),
        ({"num_attention_heads": 3, "num_key_value_heads": 1}, UnsupportedModelError, "is not a multiple of"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, values: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        checked(tmp_path, "gemma2", **SIZES | values)


def test_llama_cpp_knows_the_27b_by_its_depth() -> None:
    sizes = {"num_attention_heads": 32, "hidden_size": 4608, "head_dim": 128}
    for layers, expected in ((46, 144), (42, 128)):
        config = {**sizes, "num_hidden_layers": layers}
        fill_query_scalar(config, 46)
        assert config["query_pre_attn_scalar"] == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(None, [7, None, 7]), (1, [None] * 3), (0, [7] * 3), (3, [7, 7, None]), ([True, True, False], [7, 7, None])],
)
def test_patterns_of_a_file(tmp_path: Path, pattern: Any, expected: list[int | None]) -> None:
    metadata = {} if pattern is None else {"gemma2.attention.sliding_window_pattern": pattern}
    file = opened(tmp_path, "gemma2", metadata)
    assert windows(file.spec) == expected
    assert not file.unknown_keys


@pytest.mark.parametrize(
    ("metadata", "error", "words"),
    [
        ({"gemma2.attention.sliding_window_pattern": [True] * 4}, ModelFormatError, "has 4 values for 3 layers"),
        ({"gemma2.attention.sliding_window_pattern": 9999}, ModelFormatError, "sliding_window_pattern.*9999"),
        ({"gemma2.attention.sliding_window_pattern": "all"}, ModelFormatError, "sliding_window_pattern.*'all'"),
        ({"gemma2.rope.freq_base_swa": 500.0}, UnsupportedModelError, "freq_base_swa is 500.0"),
        ({"gemma2.attention.causal": False}, UnsupportedModelError, "attention.causal is False"),
    ],
)
def test_files_that_cannot_be_run(tmp_path: Path, metadata: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        opened(tmp_path, "gemma2", metadata)
