"""Small models with recurrent layers and random weights: delta nets, short convolutions, and no attention at all."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints.config_json import checked_config
from ipex_lookahead.engines.api import Batch, StepOutput
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.files.safe_json import JsonObject

LINEAR, FULL = "linear_attention", "full_attention"
_SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}  # fmt: skip
_DELTA = {
    **_SIZES, "model_type": "qwen3_5_text", "num_hidden_layers": 3, "layer_types": [LINEAR, LINEAR, FULL],
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "tie_word_embeddings": True,
    "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "attention_bias": False,
}  # fmt: skip
_SHORT = {
    **_SIZES, "model_type": "lfm2", "num_hidden_layers": 3, "layer_types": ["conv", FULL, "conv"], "norm_eps": 1e-5,
    "conv_L_cache": 3, "conv_bias": False, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True,
    "rope_theta": 10000.0,
}  # fmt: skip
_FALCON = {
    **_SIZES, "model_type": "falcon_h1", "num_hidden_layers": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
    "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 16, "ssm_out_multiplier": 0.5,
    "ssm_multipliers": [0.5, 1.5, 0.75, 1.25, 0.5], "mlp_multipliers": [1.5, 0.5], "tie_word_embeddings": True,
    "rope_theta": 10000.0,
}  # fmt: skip
_KIMI = {
    **_SIZES, "model_type": "kimi_linear", "num_hidden_layers": 3, "layer_types": [LINEAR, LINEAR, FULL],
    "num_key_value_heads": 4, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "linear_num_heads": 4, "linear_head_dim": 16, "mlp_layer_types": ["dense"] * 3, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
HYBRIDS: dict[str, dict[str, Any]] = {
    "delta net": _DELTA,
    "short convolution": _SHORT,
    "two mixers": _FALCON,
    "delta by key": _KIMI,
    "no attention": {**_DELTA, "num_hidden_layers": 2, "layer_types": [LINEAR, LINEAR]},
}
_SLIDES = "sliding_attention"
SHARED: dict[str, Any] = {
    **_SIZES, "model_type": "gemma4_text", "num_hidden_layers": 5, "num_kv_shared_layers": 2,
    "layer_types": [_SLIDES, _SLIDES, FULL, _SLIDES, FULL], "head_dim": 16, "global_head_dim": 32,
    "num_global_key_value_heads": 1, "attention_k_eq_v": False, "sliding_window": 7, "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 96, "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 3.0, "tie_word_embeddings": True,
}  # fmt: skip
"""Gemma 4's small models: windows, heads of two sizes, and layers that share the keys of others. No state."""
DENSE: dict[str, Any] = {**_DELTA, "layer_types": [FULL] * 3}
"""The delta net's sizes, and no state."""


class CountedEngine(NativeEngine):
    """A native engine that counts the rows it runs."""

    rows = 0

    def forward(self, batch: Batch) -> StepOutput:
        """As the native engine's."""
        self.rows += len(batch.tokens)
        return super().forward(batch)


def hybrid(
    name: str, seed: int = 0, *, layers: int | None = None, context: int = 4096, kv_cache: str = "fp16"
) -> CountedEngine:
    """A model of ``HYBRIDS``, "dense" or "shared keys", in sym_int4 on one thread; ``layers``: its last so many."""
    config = {**HYBRIDS, "dense": DENSE, "shared keys": SHARED}[name] | {"max_position_embeddings": context}
    if layers is not None:
        kinds = {key: value[-layers:] for key, value in config.items() if key.endswith("layer_types")}
        config = {**config, "num_hidden_layers": layers, **kinds}
    spec = spec_for(checked_config(JsonObject(config), name))
    engine = CountedEngine.random(spec, "sym_int4", threads=1, seed=seed, kv_cache=kv_cache)
    assert isinstance(engine, CountedEngine)
    return engine


def random_text(count: int, seed: int = 0) -> list[int]:
    """So many of their tokens."""
    return [int(token) for token in np.random.default_rng(seed).integers(1, 96, count)]
