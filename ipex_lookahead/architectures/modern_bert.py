"""ModernBERT: norms before attention and MLP, gated MLPs, rope, and windows in two of three layers."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.encoder import EncoderSpec, Link
from ipex_lookahead.architectures.hparams import MAX_LAYERS, SIZES, Source, integer, shown
from ipex_lookahead.architectures.keys import LOCAL_THETA, GgufSource
from ipex_lookahead.architectures.rope import local_rope, rope
from ipex_lookahead.architectures.spec import Activation, Attention, Block, GatedMlp, Linear, Norm, Place, Tensor
from ipex_lookahead.architectures.text_encoder import (
    ACTIVATIONS,
    LABELS,
    Config,
    chains,
    check_whole_heads,
    complete_labels,
    layer_norm,
    linear,
    tokens,
)
from ipex_lookahead.architectures.windows import FULL, SLIDING, gguf_layer_types

GLOBAL_BASE, LOCAL_BASE = 160000.0, 10000.0
"""Default bases of rope in layers without and with a window."""


def spec(config: Config) -> EncoderSpec:
    """Return the encoder for a checked ``config``."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, d, biased = config["num_attention_heads"], config["head_dim"], config["norm_bias"]
    far, near = rope(config), local_rope(config, config[LOCAL_THETA])

    def norm(name: str, gguf: str) -> Norm:
        return layer_norm(name, gguf, config, bias=biased)

    def rows(name: str, gguf: str, own: str, part: int, parts: int, n_out: int, bias: bool) -> Linear:
        """Return ``own``, part number ``part`` of a matrix that has ``parts`` of ``n_out`` rows."""

        def one(kind: str, shape: tuple[int, ...]) -> Tensor:
            whole = (parts * n_out, *shape[1:])
            at: dict[str, Any] = {"rows": (part * n_out, 1)}
            places = (Place(f"{name}.{kind}", whole, **at), Place(f"{gguf}.{kind}", whole, **at))
            return Tensor(f"{own}.{kind}", shape, *places)

        return Linear(one("weight", (n_out, hidden)), one("bias", (n_out,)) if bias else None)

    def block(layer: int) -> Block:
        ours, theirs = f"layers.{layer}", f"blk.{layer}"
        slides = config["layer_types"][layer] == SLIDING
        in_bias = config["attention_bias"]
        q, k, v = (
            rows(f"{ours}.attn.Wqkv", f"{theirs}.attn_qkv", f"{ours}.self_attn.{x}_proj", i, 3, hidden, in_bias)
            for i, x in enumerate("qkv")
        )
        gate, up = (
            rows(f"{ours}.mlp.Wi", f"{theirs}.ffn_up", f"{ours}.mlp.{x}_proj", i, 2, inner, config["mlp_bias"])
            for i, x in enumerate(("gate", "up"))
        )
        return Block(
            mixer_norm=norm(f"{ours}.attn_norm", f"{theirs}.attn_norm") if layer else None,
            mixer=Attention(
                heads=heads, kv_heads=heads, head_dim=d, scale=float(d) ** -0.5, rope=near if slides else far,
                window=config["local_attention"] // 2 if slides else None, q=q, k=k, v=v,
                o=linear(
                    f"{ours}.attn.Wo", f"{theirs}.attn_output", hidden, hidden, bias=in_bias,
                    own=f"{ours}.self_attn.o_proj",
                ),
            ),
            feed_forward_norm=norm(f"{ours}.mlp_norm", f"{theirs}.ffn_norm"),
            feed_forward=GatedMlp(
                gate,
                up,
                linear(
                    f"{ours}.mlp.Wo", f"{theirs}.ffn_down", hidden, inner, bias=config["mlp_bias"],
                    own=f"{ours}.mlp.down_proj",
                ),
                Activation(ACTIVATIONS[config["hidden_activation"]]),
            ),
        )  # fmt: skip

    def head() -> tuple[Link, ...]:
        dense = linear("head.dense", "cls", hidden, hidden, bias=config["classifier_bias"])
        activation = Activation(ACTIVATIONS[config["classifier_activation"]])
        out = linear("classifier", "cls.output", config[LABELS], hidden, bias=True)
        return dense, activation, norm("head.norm", "cls.norm"), out

    return EncoderSpec(
        model_type=config["model_type"],
        hidden=hidden,
        embedding=tokens(config, "embeddings.tok_embeddings.weight"),
        embedding_norm=norm("embeddings.norm", "token_embd_norm"),
        chains=chains(config, head),
        layers=tuple(block(layer) for layer in range(config["num_hidden_layers"])),
        final_norm=norm("final_norm", "output_norm"),
    )


def respelled(raw: Any, source: Source) -> dict[str, Any]:
    """Return a config.json with the bases of rope under the keys of transformers 5, which take precedence."""
    found = dict(raw)
    ropes = found.get("rope_parameters")
    ropes = dict(ropes) if isinstance(ropes, dict) else {}
    for kind, key in ((FULL, "global_rope_theta"), (SLIDING, "local_rope_theta")):
        inner = ropes.get(kind)
        if found.get(key) is not None and (not isinstance(inner, dict) or inner.get("rope_theta") is None):
            theta = SIZES["rope_theta"](source, key, found[key])
            ropes[kind] = {**(inner if isinstance(inner, dict) else {}), "rope_theta": theta}
    return {**found, "rope_parameters": ropes} if ropes else found


def check(config: Config, source: Source) -> None:
    """Store the norms' epsilon under its usual name, and fill in which layers have a window."""
    config["rms_norm_eps"] = config["norm_eps"]
    check_whole_heads(config, source)
    every, layers = config.pop("global_attn_every_n_layers"), config["num_hidden_layers"]
    if config.get("layer_types") is None:
        config["layer_types"] = [SLIDING if i % every else FULL for i in range(layers)]
    if len(config["layer_types"]) != layers:
        raise source.error("layer_types", f"names {len(config['layer_types'])} layers; there are {layers}")


def complete(file: GgufSource, config: Config) -> None:
    """Fill in what llama.cpp's loader does: windows from the second of three layers on, and a local base of 10,000."""
    name = "modern-bert"
    key = f"{name}.attention.sliding_window_pattern"
    config["norm_eps"] = config["rms_norm_eps"]
    window = config.setdefault("local_attention", 0)
    every = file.metadata.get(key, 3)
    if isinstance(every, int) and not isinstance(every, bool):
        integer(0, MAX_LAYERS)(Source.at(file.path, {key: (key, file.offsets.get(key))}), key, every)
        slides = [every == 0 or i % every != 0 for i in range(config["num_hidden_layers"])]
        config["layer_types"] = [SLIDING if one else FULL for one in slides]
    else:
        config["sliding_window"], config["sliding_window_pattern"] = window, every
        gguf_layer_types(file, config, name, every=3)
        del config["sliding_window"]
    if not window:
        config["layer_types"] = [FULL] * config["num_hidden_layers"]
        config["local_attention"] = 128
    config.setdefault("rope_theta", LOCAL_BASE)
    pooled = file.scalar(f"{name}.classifier.pooling_type", 1)
    if pooled not in (1, 2):
        raise file.error(
            f"{name}.classifier.pooling_type", file.offsets[f"{name}.classifier.pooling_type"],
            f"is {shown(pooled)}; it must be 1 (mean) or 2 (cls)",
        )  # fmt: skip
    config["classifier_pooling"] = ("mean", "cls")[pooled - 1]
    complete_labels(file, config)
