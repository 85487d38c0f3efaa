"""Qwen3-Next and Qwen3-Coder-Next: a `qwen3_5_moe_text` with matrices of delta nets fused by key head.

Some layers may have an MLP instead of experts. In GGUF files value heads have the folder's order, and only steps and
beta are fused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.experts import check_experts
from ipex_lookahead.architectures.families import mixtures, qwen3_5_moe_text, qwen3_5_text
from ipex_lookahead.architectures.hparams import Source
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import FeedForward, Linear, ModelSpec, Place

_SPARSE = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


def _check(config: dict[str, Any], source: Source) -> None:
    qwen3_5_text.check_layers(config, source)
    check_experts(config, source, "num_experts", default=512)
    mixtures.check_dense(config, source)


KEYS: ConfigKeys = replace(
    qwen3_5_moe_text.KEYS,
    used={**qwen3_5_moe_text.KEYS.used, **mixtures.SPARSE},
    defaults={
        **qwen3_5_moe_text.KEYS.defaults,
        **_SPARSE,
        "vocab_size": 151936,
        "intermediate_size": 5632,
        "num_hidden_layers": 48,
        "num_experts_per_tok": 10,
    },
    check=_check,
)
GGUF = GgufKeys(
    "qwen3next",
    "Qwen3NextForCausalLM",
    used=qwen3_5_moe_text.GGUF.used,
    constants={**_SPARSE, "attention_bias": False, "linear_value_heads": "grouped"},
    complete=qwen3_5_moe_text.complete,
)


def _projections(names: Names, layer: int) -> tuple[Linear, Linear, Linear, Linear]:
    """Split the fused matrices: q, k, v and gate of each key head are adjacent, and so are beta and steps."""
    config, hidden = names.config, names.hidden
    groups, heads, key = (config[f"linear_{one}"] for one in ("num_key_heads", "num_value_heads", "key_head_dim"))
    each = heads // groups
    values = each * config["linear_value_head_dim"]
    step = 2 * key + 2 * values
    fused = Place("linear_attn.in_proj_qkvz", (groups * step, hidden))

    def part(name: str, hf: Place, gguf: Place, n: int) -> Linear:
        return names.part(layer, f"linear_attn.in_proj_{name}", hf, gguf, (n, hidden))

    def of_heads(name: str, first: int) -> Linear:
        place = Place("linear_attn.in_proj_ba", (2 * heads, hidden), rows=(first, 2 * each), block=each)
        return part(name, place, replace(place, name="ssm_ba"), heads)

    channels = groups * (2 * key + values)
    inputs = replace(fused, rows=(0, step), block=key, more=((key, key), (2 * key, values)))
    gate = replace(fused, rows=(2 * key + values, step), block=values)
    return (
        part("qkv", inputs, Place("attn_qkv", (channels, hidden)), channels),
        part("z", gate, Place("attn_gate", (groups * values, hidden)), groups * values),
        of_heads("a", each),
        of_heads("b", 0),
    )


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a qwen3_next ``config``."""

    def feed_forward(names: Names, layer: int) -> FeedForward:
        if mixtures.is_dense(config, layer):
            return names.gated_mlp(layer)
        return replace(qwen3_5_moe_text.mixture(names, layer), renormalize=config["norm_topk_prob"])

    drafting = config["mtp_num_hidden_layers"] or 1  # configs lack the key, and the tensors decide
    return qwen3_5_text.decoder({**config, "mtp_num_hidden_layers": drafting}, feed_forward, _projections)
