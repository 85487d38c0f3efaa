"""MiniCPM 1B, 2B and MiniCPM4 (OpenBMB): a Llama with multipliers on embedding, residuals and logits.

transformers has no such family; the formulas are those of the published models. ``scale_depth`` is divided by the
square root of the number of layers, and logits by the hidden size over ``dim_model_base``. GGUF files without these
keys have the values of the first models.
"""

from __future__ import annotations

import math
from typing import Any

from ipex_lookahead.architectures.dense import Config, Dense, keys
from ipex_lookahead.architectures.hparams import Source, check_even_heads, number
from ipex_lookahead.architectures.keys import GgufKeys, GgufSource
from ipex_lookahead.architectures.rope import rotated
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.architectures.windows import no_window
from ipex_lookahead.files.refusal import Refusal

_MULTIPLIER = number(1e-6, 1e6)
_FIRST = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256.0}
"""Values of MiniCPM 1B and 2B."""


def _check(config: Config, source: Source) -> None:
    """Check LongRoPE's two sets of frequencies, and fill in its factor on cos and sin."""
    check_even_heads(config, source)
    scaling: dict[str, Any] = config["rope_scaling"] or {}
    if scaling.get("rope_type") != "longrope":
        return
    for key in ("short_factor", "long_factor"):
        if len(scaling.get(key, ())) != (pairs := rotated(config) // 2):
            count = len(scaling.get(key, ()))
            raise source.error(f"rope_scaling.{key}", f"has {count} divisors for {pairs} pairs")
    whole: int = config["max_position_embeddings"]
    original = int(scaling.setdefault("original_max_position_embeddings", whole) or whole)
    scaling.pop("factor", None)  # not read by the published models
    grown = whole / original
    root = math.sqrt(1 + math.log(grown) / math.log(original)) if grown > 1 and original > 1 else 1.0
    scaling.setdefault("attention_factor", root)


def _complete(file: GgufSource, config: Config) -> None:
    """Derive the folder's keys: files have the multiplier of residuals and the divisor of logits."""
    if "residual_scale" in config:
        config["scale_depth"] = config.pop("residual_scale") * math.sqrt(config["num_hidden_layers"])
    if "logit_scale" in config:
        config["dim_model_base"] = config["hidden_size"] / config.pop("logit_scale")
    for key, value in _FIRST.items():
        config.setdefault(key, value)


# fmt: off
_ROW = Dense(
    "see the module",
    keys(
        "hidden_act tie_word_embeddings attention_bias",
        {
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "tie_word_embeddings": True, "scale_emb": 1.0, "scale_depth": 1.0,
            "dim_model_base": 1.0,
        },
        dict.fromkeys(_FIRST, _MULTIPLIER), check=_check,
        neutral={
            "auto_map": "remote code, which is never executed", "mup_denominator": "training only",
            "pretraining_tp": "the same products in slices, with slightly different rounding",
        },
        refused={
            **no_window("MiniCPM"),
            "mlp_bias": Refusal("adds biases to MLPs", unless=(None, False)),
            "num_experts": Refusal("makes the MLP a mixture of experts", unless=(None, 0)),
            "sparse_config": Refusal("makes attention sparse beyond a number of positions", unless=(None,)),
        },
    ),
    GgufKeys(
        "minicpm", "MiniCPMForCausalLM",
        used={"scale_emb": "embedding_scale", "residual_scale": "residual_scale", "logit_scale": "logit_scale"},
        constants={"attention_bias": False}, complete=_complete,
    ),
    pairs=True,
)
# fmt: on
KEYS, GGUF = _ROW.KEYS, _ROW.GGUF


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a minicpm ``config``."""
    multipliers = {
        "embedding_multiplier": config["scale_emb"],
        "residual_multiplier": config["scale_depth"] / math.sqrt(config["num_hidden_layers"]),
        "logits_scaling": config["hidden_size"] / config["dim_model_base"],
    }
    return _ROW.spec({**config, **multipliers})
