"""Laguna: heads, ropes and gates by layer, in folders and in GGUF files, and the ids that end an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ipex_lookahead.architectures.spec import Experts
from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows
from tests.support.family_table import FAMILIES, FULL, SLIDING, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build

BASE = FAMILIES["laguna"].base


def ropes(spec: Any) -> list[int]:
    """The number of rotated values of a head, by layer."""
    return [2 * len(block.mixer.rope.frequencies) for block in spec.layers]


def gates(spec: Any) -> list[int]:
    """The number of gates of a row, by layer."""
    return [block.mixer.gate.weight.shape[0] for block in spec.layers]


def test_layers_have_heads_and_ropes_of_their_own(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "laguna", **BASE)
    assert [block.mixer.heads for block in spec.layers] == gates(spec) == [4, 6, 6, 6, 4]
    assert (ropes(spec), windows(spec)) == ([8, 16, 16, 16, 8], [None, 9, 9, 9, None])
    assert {block.mixer.gate_kind for block in spec.layers} == {"softplus"}
    assert [isinstance(block.feed_forward, Experts) for block in spec.layers] == [False, True, True, True, True]


def test_without_ropes_in_a_config_half_of_a_head_turns_in_full_layers(tmp_path: Path) -> None:
    """A rope object without a part is of whole heads, as in transformers; only a missing one has half."""
    values = {key: value for key, value in BASE.items() if key != "rope_parameters"}
    assert ropes(spec_of(tmp_path, "laguna", **values)) == [8, 16, 16, 16, 8]
    whole = {FULL: {"rope_type": "default", "rope_theta": 5e5}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}
    assert ropes(spec_of(tmp_path, "laguna", **values, rope_parameters=whole)) == [16] * 5


@pytest.mark.parametrize(("gating", "each"), [(True, 1), ("per-head", 1), ("per_element", 16), ("per-element", 16)])
def test_the_gates_granularity(tmp_path: Path, gating: Any, each: int) -> None:
    assert gates(spec_of(tmp_path, "laguna", **{**BASE, "gating": gating})) == [n * each for n in (4, 6, 6, 6, 4)]


def test_a_files_gate_shows_its_granularity(tmp_path: Path) -> None:
    for variant, gating in zip(variants("laguna")[:2], ("per-head", "per-element"), strict=True):
        file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("laguna", variant)))
        file.close()
        assert file.config["gating"] == gating


@pytest.mark.parametrize(
    ("key", "value", "error", "words"),
    [
        ("gating", False, UnsupportedModelError, "gating is False; it must be true"),
        ("gating", "per-layer", UnsupportedModelError, "gating is 'per-layer'"),
        ("gating_types", ["per_head"] * 4 + ["per_element"], UnsupportedModelError, "gating_types is"),
        ("moe_apply_router_weight_on_input", True, UnsupportedModelError, "moe_apply_router_weight_on_input is True"),
        ("moe_router_logit_softcapping", 5.0, UnsupportedModelError, "moe_router_logit_softcapping is 5.0, which caps"),
        ("num_attention_heads_per_layer", [4, 6], ModelFormatError, "names 2 layers; there are 5"),
        ("num_attention_heads_per_layer", [4, 6, 6, 6, 3], ModelFormatError, "3 heads, which are not a multiple"),
        ("num_experts_per_tok", 7, ModelFormatError, "is 7; there are 6 experts"),
        ("mlp_layer_types", ["dense"] * 3, ModelFormatError, "names 3 layers"),
    ],
)
def test_values_that_are_refused(tmp_path: Path, key: str, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        checked(tmp_path, "laguna", **{**BASE, key: value})


@pytest.mark.parametrize(
    ("key", "value", "error", "words"),
    [
        ("attention.sliding_window_pattern", [True] * 3, ModelFormatError, "must be a list of 5 bools"),
        ("attention.sliding_window_pattern", 0, ModelFormatError, "from 1"),
        ("rope.dimension_count_swa", 17, ModelFormatError, "from 1 to 16"),
        ("leading_dense_block_count", 6, ModelFormatError, "from 0 to 5"),
    ],
)
def test_keys_of_files_that_are_wrong(tmp_path: Path, key: str, value: Any, error: type[Exception], words: str) -> None:
    def change(keys: dict[str, Any], _: dict[str, Any]) -> None:
        kinds = {int: gguf.GGUFValueType.UINT32, list: gguf.GGUFValueType.ARRAY}
        sub = gguf.GGUFValueType.BOOL if isinstance(value, list) else None
        keys[f"laguna.{key}"] = gguf.GGUFValue(value, kinds[type(value)], sub)

    with pytest.raises(error, match=words):
        GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("laguna", variants("laguna")[0]), change=change))


def test_a_files_pattern_of_windows(tmp_path: Path) -> None:
    given = opened(tmp_path, "laguna", {"laguna.attention.sliding_window_pattern": [True, False, True, True, True]})
    assert windows(given.spec) == [9, None, 9, 9, 9]


def test_both_ends_of_an_answer_are_read(tmp_path: Path) -> None:
    """Of a turn and of a text: a folder lists them, a file has the former as its end of a turn."""
    ids = {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 24}
    assert opened(tmp_path, "laguna", ids).config["eos_token_id"] == [2, 24]
    assert checked(tmp_path, "laguna", **{**BASE, "eos_token_id": [2, 24]})["eos_token_id"] == [2, 24]


def test_heads_of_a_file_that_are_equal_need_no_list(tmp_path: Path) -> None:
    def one(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys["laguna.attention.head_count"] = gguf.GGUFValue(4, gguf.GGUFValueType.UINT32)
        for name in list(tensors):
            if name.startswith(("blk.1.", "blk.2.", "blk.3.")) and "attn_q." in name:
                tensors[name] = tensors[name][:64]
            if name.startswith(("blk.1.", "blk.2.", "blk.3.")) and "attn_output" in name:
                tensors[name] = np.ascontiguousarray(tensors[name][:, :64])
            if name.startswith(("blk.1.", "blk.2.", "blk.3.")) and "attn_gate" in name:
                tensors[name] = tensors[name][:4]

    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build("laguna", variants("laguna")[0]), change=one))
    file.close()
    assert [block.mixer.heads for block in file.spec.layers] == [4] * 5
