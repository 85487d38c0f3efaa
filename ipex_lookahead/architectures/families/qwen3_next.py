"""Qwen3-Next and Qwen3-Coder-Next: as `qwen3_5_moe_text`, with a delta net's matrices fused by heads of keys.

Some layers may have an MLP instead of experts. GGUF files have heads of values in the folder's order, and matrices
that are no longer fused but for steps and beta.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.experts import check_experts, need_counts
from ipex_lookahead.architectures.families import mixtures, qwen3_5_moe_text, qwen3_5_text
from ipex_lookahead.architectures.hparams import Source
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import FeedForward, Linear, ModelSpec, Place

_SPARSE = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


def _check(config: dict[str, Any], source: Source) -> None:
    qwen3_5_text.check_layers(config, source)
    check_experts(config, source, "num_experts", usual=512)
    mixtures.check_dense(config, source)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    need_counts(file, "qwen3next")
    qwen3_5_text.complete(file, config)
    config.setdefault("shared_expert_intermediate_size", config["moe_intermediate_size"])


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
    complete=_complete,
)


def _projections(names: Names, layer: int) -> tuple[Linear, Linear, Linear, Linear]:
    """Of each head of keys lie q, k, and of its heads of values v and the gate together; so do beta and steps."""
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
    """The decoder that a qwen3_next ``config`` describes."""

    def feed_forward(names: Names, layer: int) -> FeedForward:
        if mixtures.is_dense(config, layer):
            return names.gated_mlp(layer)
        return replace(qwen3_5_moe_text.mixture(names, layer), renormalise=config["norm_topk_prob"])

    drafting = config["mtp_num_hidden_layers"] or 1  # which configs do not say; whether it is there the files do
    return qwen3_5_text.decoder({**config, "mtp_num_hidden_layers": drafting}, feed_forward, _projections)
