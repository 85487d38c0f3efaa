"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: q, k and v in one tensor, gate and up in another; part of a head rotated.

Those with 128 thousand positions have two sets of frequencies (LongRoPE; Ding et al., arXiv 2402.13753). Which one
holds follows from the context that the model was loaded for, never from how long a text has become: keys that are there
already would otherwise change. Without a word from the user the context is the original one, and the short set holds.
"""

from __future__ import annotations

import math
from typing import Any

from ipex_lookahead.architectures.hparams import MAX_CONTEXT, Source, check_even_heads, integer, number
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import SILU, Names, usual
from ipex_lookahead.architectures.rope import rope, rotated
from ipex_lookahead.architectures.spec import Attention, GatedMlp, Linear, ModelSpec, Place
from ipex_lookahead.architectures.windows import one_kind_of_layer
from ipex_lookahead.errors import UnsupportedModelError


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    scaling = config["rope_scaling"]
    original = config.pop("original_max_position_embeddings")
    if scaling is None:
        return
    if scaling["rope_type"] in ("su", "yarn"):  # names of the first Phi-3's, and the same thing
        scaling["rope_type"] = "longrope"
    if scaling["rope_type"] != "longrope" or not {"short_factor", "long_factor"} <= scaling.keys():
        raise UnsupportedModelError(
            f"{source.file}: rope scaling of a phi3 is of type longrope with a short_factor and a long_factor; this is "
            f"{scaling['rope_type']!r}"
        )
    pairs = rotated(config) // 2
    for key in ("short_factor", "long_factor"):
        if len(scaling[key]) != pairs:
            raise source.error(f"rope_scaling.{key}", f"has {len(scaling[key])} divisors for {pairs} pairs")
    original = scaling.setdefault("original_max_position_embeddings", original)
    factor = scaling.pop("factor", None) or config["max_position_embeddings"] / original
    if "attention_factor" not in scaling:
        grown = factor > 1 and original > 1
        scaling["attention_factor"] = math.sqrt(1 + math.log(factor) / math.log(original)) if grown else 1.0


KEYS = ConfigKeys(
    used={
        **usual("hidden_act tie_word_embeddings sliding_window"),
        "partial_rotary_factor": number(0, 1, above=True),
        "original_max_position_embeddings": integer(1, MAX_CONTEXT),
    },
    defaults={
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "sliding_window": None,
        "partial_rotary_factor": 1.0,
    },
    nullable=("sliding_window",),
    neutral={"resid_pdrop": "zero outside training", "embd_pdrop": "zero outside training"},
    refused=one_kind_of_layer("Phi-3"),
    check=_check,
)


GGUF = GgufKeys("phi3", "Phi3ForCausalLM", used={"sliding_window": "attention.sliding_window"})


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a phi3 ``config`` describes."""
    names, turn = Names(config), rope(config)
    d, hidden = names.head_dim, names.hidden
    q, kv = names.heads * d, names.kv_heads * d

    def attention(i: int) -> Attention:
        places = {"q": (0, q), "k": (q, kv), "v": (q + kv, kv)}
        whole = (q + 2 * kv, hidden)
        made = {}
        for x, (first, rows) in places.items():
            hf, gguf = (Place(name, whole, rows=(first, 1)) for name in ("self_attn.qkv_proj", "attn_qkv"))
            made[x] = names.part(i, f"self_attn.{x}_proj", hf, gguf, (rows, hidden))
        o = names.linear(i, "self_attn.o_proj", "attn_output", hidden, q)
        return Attention(
            heads=names.heads, kv_heads=names.kv_heads, head_dim=d, q=made["q"], k=made["k"], v=made["v"], o=o,
            scale=d**-0.5, rope=turn, window=config["sliding_window"],
        )  # fmt: skip

    return names.model(lambda i: names.block(i, attention(i), fused_mlp(names, i)))


def fused_mlp(names: Names, i: int) -> GatedMlp:
    """The MLP of block ``i``, whose gate and up are halves of one matrix."""
    hidden, inner = names.hidden, names.config["intermediate_size"]

    def half(ours: str, first: int) -> Linear:
        hf, gguf = (Place(name, (2 * inner, hidden), rows=(first, 1)) for name in ("mlp.gate_up_proj", "ffn_up"))
        return names.part(i, f"mlp.{ours}_proj", hf, gguf, (inner, hidden))

    down = names.linear(i, "mlp.down_proj", "ffn_down", hidden, inner)
    return GatedMlp(half("gate", 0), half("up", inner), down, SILU)
