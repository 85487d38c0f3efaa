"""What towers of SigLIP's kind share: blocks of layer norms and a plain MLP, a norm at the end, and no rope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_lookahead.architectures.encoder import EncoderSpec, Link
from ipex_lookahead.architectures.hparams import integer, number, one_of
from ipex_lookahead.architectures.spec import Activation, Attention, Block, GatedMlp, Linear, Place
from ipex_lookahead.engines.native.encoder import NativeEncoder, Pause
from ipex_lookahead.vision.preparation import Floats
from ipex_lookahead.vision.towers.base import GgufTower, Key, layer_norm, linear, tensor

KEYS = {
    "hidden_size": Key(integer(16, 1 << 16), 768),
    "intermediate_size": Key(integer(1, 1 << 18), 3072),
    "num_hidden_layers": Key(integer(1, 512), 12),
    "num_attention_heads": Key(integer(1, 1024), 12),
    "num_channels": Key(integer(3, 3), 3),
    "patch_size": Key(integer(1, 256), 16),
    "hidden_act": Key(one_of("gelu_pytorch_tanh"), "gelu_pytorch_tanh"),
    "layer_norm_eps": Key(number(1e-30, 1), 1e-6),
}
NEUTRAL = {
    "attention_dropout": "for training",
    "initializer_range": "for training",
    "vision_use_head": "about a head that reads the tower's result for other uses",
}
PATCHES, LAST_NORM, FEATURES = 0, 1, 2
"""Chains."""


def spec(
    model_type: str, config: Mapping[str, Any], name: str, positions: int, features: tuple[Link, ...], *, conv: bool
) -> EncoderSpec:
    """Return a tower.

    Args:
        model_type: name of the family.
        config: checked values of ``KEYS``.
        name: the tower in names of a folder's tensors.
        positions: number of position embeddings.
        features: chain from the tower's rows to the text model.
        conv: True if the patch embedding is a convolution, [channel, y, x]; else [y, x, channel].
    """
    d, side = config["hidden_size"], config["patch_size"]
    values, shape = 3 * side * side, (d, 3, side, side)
    weight = f"{name}.embeddings.patch_embedding.weight"
    gguf = Place("v.patch_embd.weight", shape, layout="plain" if conv else "channels_first")
    patches = Linear(
        tensor(weight, (d, values), gguf, Place(weight, shape if conv else (d, values))),
        tensor(f"{name}.embeddings.patch_embedding.bias", (d,), "v.patch_embd.bias"),
    )
    table = tensor(f"{name}.embeddings.position_embedding.weight", (positions, d), "v.position_embd.weight")
    return EncoderSpec(
        model_type=model_type,
        hidden=d,
        chains=(
            (patches,),
            (layer_norm(f"{name}.post_layernorm", d, config["layer_norm_eps"], "v.post_ln"),),
            features,
        ),
        layers=tuple(_block(config, name, number) for number in range(config["num_hidden_layers"])),
        tables=(table,),
    )


def _block(config: Mapping[str, Any], tower: str, number: int) -> Block:
    d, heads, width, epsilon = (
        config[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size", "layer_norm_eps")
    )
    name, gguf = f"{tower}.encoder.layers.{number}", f"v.blk.{number}"

    def projection(part: str, other: str) -> Linear:
        return linear(f"{name}.self_attn.{part}", d, d, f"{gguf}.{other}", bias=True)

    return Block(
        mixer_norm=layer_norm(f"{name}.layer_norm1", d, epsilon, f"{gguf}.ln1"),
        mixer=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=d // heads,
            scale=float(d // heads) ** -0.5,
            rope=None,
            q=projection("q_proj", "attn_q"),
            k=projection("k_proj", "attn_k"),
            v=projection("v_proj", "attn_v"),
            o=projection("out_proj", "attn_out"),
        ),
        feed_forward_norm=layer_norm(f"{name}.layer_norm2", d, epsilon, f"{gguf}.ln2"),
        feed_forward=GatedMlp(
            None,
            linear(f"{name}.mlp.fc1", width, d, f"{gguf}.ffn_up", bias=True),
            linear(f"{name}.mlp.fc2", d, width, f"{gguf}.ffn_down", bias=True),
            Activation("gelu_tanh"),
        ),
    )


def rows(encoder: NativeEncoder, values: Floats, positions: Floats, pause: Pause) -> Floats:
    """Return the tower's rows for patches and their position embeddings, after the last norm."""
    x = encoder.chain(PATCHES, values, pause) + positions
    last = encoder.layers(x, pause=pause)[len(encoder.spec.layers)]
    return encoder.chain(LAST_NORM, last, pause)


def gguf_config(file: GgufTower) -> dict[str, Any]:
    """Return the keys of ``KEYS`` in a GGUF file."""
    return {
        "hidden_size": file.whole("embedding_length"),
        "intermediate_size": file.whole("feed_forward_length"),
        "num_hidden_layers": file.whole("block_count"),
        "num_attention_heads": file.whole("attention.head_count"),
        "patch_size": file.whole("patch_size"),
        "layer_norm_eps": file.number("attention.layer_norm_epsilon"),
    }
