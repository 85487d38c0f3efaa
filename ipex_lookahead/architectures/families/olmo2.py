"""OLMo 2: a Llama whose norms come after attention and MLP, and over the whole of q and of k."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Attention, Block, ModelSpec, Rope
from ipex_lookahead.architectures.windows import no_window

KEYS = ConfigKeys(
    used=usual("hidden_act tie_word_embeddings attention_bias"),
    defaults={
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
    refused=no_window("OLMo 2"),
)


def has_windows(file: GgufSource) -> bool:
    """Whether a file of the architecture is an OLMo 3: llama.cpp's two are one, and only an OLMo 3 has a window."""
    return bool(file.scalar("olmo2.attention.sliding_window", 0))


GGUF = GgufKeys(
    "olmo2",
    "Olmo2ForCausalLM",
    constants={"attention_bias": False},
    neutral={
        "attention.sliding_window_pattern": "which layers have a window, and there is none",
        "rope.freq_base_swa": "of layers with a window, and there is none",
    },
    claims=lambda file: not has_windows(file),
)


def block(names: Names, i: int, turn: Rope) -> Block:
    """Norms over the whole of q and k, and behind attention and MLP."""
    attention = names.attention(
        i,
        rope=turn,
        q_norm=names.norm(i, "self_attn.q_norm", "attn_q_norm", names.heads * names.head_dim),
        k_norm=names.norm(i, "self_attn.k_norm", "attn_k_norm", names.kv_heads * names.head_dim),
    )
    return after(names, i, attention)


def after(names: Names, i: int, attention: Attention) -> Block:
    """A block with norms behind attention and MLP instead of before them."""
    return Block(
        mixer=attention,
        feed_forward=names.gated_mlp(i),
        mixer_after=names.norm(i, "post_attention_layernorm", "post_attention_norm"),
        feed_forward_after=names.norm(i, "post_feedforward_layernorm", "post_ffw_norm"),
    )


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that an olmo2 ``config`` describes."""
    names, turn = Names(config), rope(config)
    return names.model(lambda i: block(names, i, turn))
