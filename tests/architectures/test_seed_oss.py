"""Seed-OSS: which projections have biases, and its own name for the norm before the MLP."""

from __future__ import annotations

from pathlib import Path

from tests.support.family_configs import spec_of


def biased(attention: object) -> str:
    return "".join(x for x in "qkvo" if getattr(attention, x).bias is not None)


def test_biases_of_q_k_and_v_and_of_the_output_are_two_switches(tmp_path: Path) -> None:
    for values, expected in (
        ({}, "qkv"),
        ({"attention_out_bias": True}, "qkvo"),
        ({"attention_bias": False, "attention_out_bias": True}, "o"),
        ({"attention_bias": False}, ""),
    ):
        assert biased(spec_of(tmp_path, "seed_oss", head_dim=16, **values).layers[0].mixer) == expected


def test_the_norm_before_the_mlp_has_another_name_in_gguf(tmp_path: Path) -> None:
    block = spec_of(tmp_path, "seed_oss", head_dim=16).layers[1]
    assert block.feed_forward_norm.weight.gguf.name == "blk.1.post_attention_norm.weight"
    assert block.mixer_after is None
