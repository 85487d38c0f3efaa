"""Shapes of published drafting heads for the models of ``shapes.py``, without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import ModelSpec, eagle3, spec_for
from ipex_lookahead.architectures.families import gemma4_assistant
from ipex_lookahead.bench.shapes import config_of
from ipex_lookahead.checkpoints.config_json import checked_config
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_json import JsonObject

BLOCKS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
"""Config keys of the number of blocks for drafting."""
EAGLE3 = {  # intermediate_size, num_attention_heads, num_key_value_heads, head_dim, from SpecForge's configs
    "llama-3.1-8b": (14336, 32, 8, 128),
    "qwen3-8b": (12288, 32, 8, 128),
    "gpt-oss-20b": (17280, 64, 8, 64),
}
ASSISTANTS = {  # hidden_size, intermediate_size
    "gemma4-26b-a4b": (1024, 8192),
}
_WORDS = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")


def drafter_of(shape: str, layers: int | None = None) -> tuple[str, ModelSpec, ModelSpec]:
    """Return the kind of a shape's head, the head, and its target with the first ``layers`` only if given.

    An EAGLE-3 head has its own lm_head, here for the whole vocabulary; the caller chooses the draft vocabulary.

    Raises InputError for a shape without a known head.
    """
    config = config_of(shape, layers)
    target = spec_for({**config, **dict.fromkeys(BLOCKS, 1)})
    if target.mtp is not None:
        return "MTP", target.mtp, target
    if shape in EAGLE3:
        return "EAGLE-3", _eagle3(EAGLE3[shape], config, target), target
    if shape in ASSISTANTS:
        return "assistant", _assistant(ASSISTANTS[shape], config, target), target
    raise InputError(
        f"{shape} has no block for drafting (MTP) and no known head; choose one of"
        f" {', '.join((*EAGLE3, *ASSISTANTS))}, or a shape of Qwen3.5 or GLM-4.7"
    )


def _eagle3(sizes: tuple[int, ...], config: dict[str, Any], target: ModelSpec) -> ModelSpec:
    raw = {
        "model_type": "llama", **dict(zip(_WORDS, sizes, strict=True)), "hidden_size": target.hidden,
        "num_hidden_layers": 1, "vocab_size": target.vocab, "max_position_embeddings": target.max_context,
    }  # fmt: skip
    layer = checked_config(JsonObject(raw), "EAGLE-3")
    states = eagle3.default_states(len(target.layers))
    own = ("embed_tokens", "_norm.", "q_norm", "k_norm", "bias")  # shared with the target, or missing in these heads
    return eagle3.spec(
        {**layer, "states": states, "outputs": target.vocab},
        target,
        lambda tensor: not any(part in tensor.name for part in own),
    )


def _assistant(sizes: tuple[int, int], config: dict[str, Any], target: ModelSpec) -> ModelSpec:
    shared = (
        "num_attention_heads", "num_key_value_heads", "head_dim", "global_head_dim", "num_global_key_value_heads",
        "attention_k_eq_v", "sliding_window", "vocab_size", "max_position_embeddings",
    )  # fmt: skip
    text = {
        **{key: config[key] for key in shared}, "model_type": "gemma4_text", "hidden_size": sizes[0],
        "intermediate_size": sizes[1], "num_hidden_layers": 4, "num_kv_shared_layers": 4,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"], "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    }  # fmt: skip
    raw = {
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": target.hidden,
        "text_config": JsonObject(text),
    }
    head = spec_for(checked_config(JsonObject(raw), "assistant"))
    return gemma4_assistant.for_target(head, target, Path("assistant"))
