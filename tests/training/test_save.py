"""A head's folder is SpecForge's: its tensors, and a config that says which hidden states it reads."""

from __future__ import annotations

import stat

import torch
from safetensors.torch import load_file

from tests.support.eagle3_chain import embedding_of

LAYER = {
    "hidden_norm": [64],
    "input_layernorm": [64],
    "post_attention_layernorm": [64],
    "self_attn.q_proj": [64, 128],
    "self_attn.k_proj": [32, 128],
    "self_attn.v_proj": [32, 128],
    "self_attn.o_proj": [64, 64],
    "mlp.gate_proj": [172, 64],
    "mlp.up_proj": [172, 64],
    "mlp.down_proj": [64, 172],
}


def test_the_tensors(trained):
    expected = {f"midlayer.{name}.weight": (shape, torch.float16) for name, shape in LAYER.items()}
    expected |= {
        "fc.weight": ([64, 192], torch.float16),
        "norm.weight": ([64], torch.float16),
        "lm_head.weight": ([448, 64], torch.float16),
        "d2t": ([448], torch.int64),
        "t2d": ([512], torch.bool),
    }
    tensors = load_file(trained.folder / "model.safetensors")
    assert {name: (list(one.shape), one.dtype) for name, one in tensors.items()} == expected
    ids = tensors["d2t"] + torch.arange(448)
    assert (ids.diff() > 0).all()
    assert tensors["t2d"].nonzero().flatten().tolist() == ids.tolist()
    theirs = embedding_of(trained.reference.model)[ids].half()  # the target's rows: its embedding is its lm_head
    assert (tensors["lm_head.weight"] == theirs).all()


def test_the_config(trained):
    config = trained.config
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 3]  # outputs: after 1, 2 and 4 layers
    assert {name: config[name] for name in ("num_hidden_layers", "hidden_size", "target_hidden_size", "vocab_size",
            "draft_vocab_size", "head_dim", "num_attention_heads", "num_key_value_heads")} == {
        "num_hidden_layers": 1, "hidden_size": 64, "target_hidden_size": 64, "vocab_size": 512,
        "draft_vocab_size": 448, "head_dim": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
    }  # fmt: skip


def test_everybody_may_read_it(trained):
    modes = {stat.S_IMODE(file.stat().st_mode) for file in trained.folder.iterdir()}
    assert len(modes) == 1
