"""Llama-2, Llama-3.x, TinyLlama, SmolLM2 and everything else that calls itself ``llama``."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.base import SLOTS, DecoderSpec
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.errors import UnsupportedModelError

_LAYER = "model.layers.{layer}."
_ATTENTION = {slot: f"{_LAYER}self_attn.{slot}_proj" for slot in ("q", "k", "v", "o")}
_MLP = {slot: f"{_LAYER}mlp.{slot}_proj" for slot in ("gate", "up", "down")}


def spec(config: dict[str, Any]) -> DecoderSpec:
    """The decoder that a llama ``config`` describes. Raises UnsupportedModelError for what this package cannot run."""
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"hidden_act is {config['hidden_act']!r}; the Llama decoder here has 'silu' only")
    frequencies, attention_factor = rope(config)
    biased = (_ATTENTION if config.get("attention_bias") else {}) | (_MLP if config.get("mlp_bias") else {})
    return DecoderSpec(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocab=config["vocab_size"],
        rms_epsilon=config["rms_norm_eps"],
        max_context=config["max_position_embeddings"],
        rope_frequencies=frequencies,
        rope_attention_factor=attention_factor,
        tied=config.get("tie_word_embeddings", False),
        matrices={slot: (_ATTENTION | _MLP)[slot] for slot in SLOTS},
        biased=frozenset(biased),
        attention_norm=_LAYER + "input_layernorm.weight",
        mlp_norm=_LAYER + "post_attention_layernorm.weight",
        final_norm="model.norm.weight",
        embedding="model.embed_tokens.weight",
        lm_head="lm_head.weight",
    )
