"""Latent attention of DeepSeek-V2 and its successors and of GLM-4.7-Flash: keys of both kinds of files, and tensors.

As in transformers, the RMS norms of latents always have an epsilon of 1e-6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.hparams import MAX_HEAD_DIM, SIZES, Check, Source, integer, optional, shown
from ipex_lookahead.architectures.keys import GgufSource
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.rope import magnitude, rope
from ipex_lookahead.architectures.spec import LatentAttention, Linear, Norm, Place, Rope, Tensor
from ipex_lookahead.errors import UnsupportedModelError

EPSILON = 1e-6
MAX_TOTAL_HEADS = 1 << 15
"""Maximum number of heads in all layers, so that a config cannot create millions of tensors (DeepSeek-V3: 7,808)."""

_dim = integer(1, MAX_HEAD_DIM)
KEYS: Mapping[str, Check] = {
    "kv_lora_rank": _dim,
    "q_lora_rank": optional(SIZES["hidden_size"]),
    "qk_nope_head_dim": _dim,
    "qk_rope_head_dim": _dim,
    "v_head_dim": _dim,
}
DEFAULTS: Mapping[str, Any] = {
    "head_dim": 64,  # qk_rope_head_dim, which is checked after it
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
GGUF_USED: Mapping[str, str] = {
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "rope_scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
}


def check(config: dict[str, Any], source: Source) -> None:
    """Check the sizes against each other. Raises ModelFormatError or UnsupportedModelError."""
    config["head_dim"] = rotated = config["qk_rope_head_dim"]
    latent, heads = config["kv_lora_rank"], config["num_attention_heads"]
    if config["num_key_value_heads"] != heads:
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling('num_key_value_heads')} is {config['num_key_value_heads']}, but there are"
            f" {heads} heads; with latents the numbers must be equal"
        )
    if rotated % 2 or (latent + rotated) % 8 or latent + rotated > MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"{source.file}: kv_lora_rank is {latent} and qk_rope_head_dim {rotated}; the number of rotated values must"
            f" be even, and the sum a multiple of 8 up to {MAX_HEAD_DIM}"
        )
    if heads * config["num_hidden_layers"] > MAX_TOTAL_HEADS:
        raise source.error("num_attention_heads", f"is {heads}; the maximum in all layers is {MAX_TOTAL_HEADS}")


def complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Fill in head sizes, from files with latents as keys or (before April 2025) with expanded keys and values."""
    prefix = file.scalar("general.architecture")
    for name in ("kv_lora_rank", "qk_rope_head_dim"):
        if name not in config:
            raise file.error(f"{prefix}.{GGUF_USED[name]}", None, "is missing")
    ending = "_mla" if f"{prefix}.attention.key_length_mla" in file.metadata else ""
    rotated = config["qk_rope_head_dim"]
    config["qk_nope_head_dim"] = _size(file, f"{prefix}.attention.key_length{ending}", rotated + 1) - rotated
    config["v_head_dim"] = _size(file, f"{prefix}.attention.value_length{ending}", 1)
    config.setdefault("q_lora_rank", None)
    config["num_key_value_heads"] = config["num_attention_heads"]
    config["attention_bias"] = "blk.0.attn_kv_a_mqa.bias" in file.tensors
    if (scaling := config["rope_scaling"]) is not None and "mscale_all_dim" in scaling:
        # Files store a tenth of it. Only the ratio to mscale enters cos and sin, and the two are always equal.
        scaling["mscale_all_dim"] = scaling["mscale"] = float(f"{10 * scaling['mscale_all_dim']:.6g}")


def _size(file: GgufSource, key: str, least: int) -> int:
    value, most = file.scalar(key), 2 * MAX_HEAD_DIM
    if type(value) is not int or not least <= value <= most:
        raise file.error(key, file.offsets.get(key), f"is {shown(value)}; it must be from {least} to {most}")
    return value


def latent_rope(config: dict[str, Any]) -> Rope:
    """Return the rope of the rotated values; pairs are adjacent values unless ``rope_interleave`` is false."""
    return replace(rope(config), interleaved=config.get("rope_interleave", True))


def latent_attention(names: Names, layer: int, turn: Rope) -> LatentAttention:
    """Return the attention of block ``layer``."""
    config, hidden, heads = names.config, names.hidden, names.heads
    latent, rank = config["kv_lora_rank"], config["q_lora_rank"]
    passed, rotated, values = (config[f"{name}_head_dim"] for name in ("qk_nope", "qk_rope", "v"))
    bias, queries = config["attention_bias"], heads * (passed + rotated)
    both, ours = passed + values, f"model.layers.{layer}.self_attn"

    def norm(name: str, gguf: str, n: int) -> Norm:
        return Norm(names.vector(layer, f"self_attn.{name}.weight", f"{gguf}.weight", n), EPSILON)

    def of_head(head: int, part: str, n_out: int, n_in: int, first: int) -> Linear:
        rows = (head * both + first, 1)
        layout = "by_input" if part == "k" else "plain"
        hf = Place(f"{ours}.kv_b_proj.weight", (heads * both, latent), rows=rows, layout=layout)
        gguf = Place(f"blk.{layer}.attn_{part}_b.weight", (heads, n_out, n_in), head)
        return Linear(Tensor(f"{ours}.{part}_b_proj.{head}.weight", (n_out, n_in), hf, gguf))

    if rank is None:
        queried = {"q": names.linear(layer, "self_attn.q_proj", "attn_q", queries, hidden)}
    else:
        queried = {
            "q_a": names.linear(layer, "self_attn.q_a_proj", "attn_q_a", rank, hidden, bias=bias),
            "q": names.linear(layer, "self_attn.q_b_proj", "attn_q_b", queries, rank),
        }
    return LatentAttention(
        heads=heads,
        latent=latent,
        passed=passed,
        rotated=rotated,
        value_dim=values,
        scale=(passed + rotated) ** -0.5 * _temperature(config),
        rope=turn,
        q_norm=None if rank is None else norm("q_a_layernorm", "attn_q_a_norm", rank),
        kv_a=names.linear(layer, "self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", latent + rotated, hidden, bias=bias),
        kv_norm=norm("kv_a_layernorm", "attn_kv_a_norm", latent),
        k_b=tuple(of_head(h, "k", latent, passed, 0) for h in range(heads)),
        v_b=tuple(of_head(h, "v", values, latent, passed) for h in range(heads)),
        o=names.linear(layer, "self_attn.o_proj", "attn_output", hidden, heads * values, bias=bias),
        **queried,
    )


def _temperature(config: Mapping[str, Any]) -> float:
    """Return yarn's factor on scores, which DeepSeek's models apply to queries and keys outside of rope."""
    scaling = config["rope_scaling"] or {}
    if scaling.get("rope_type", "default") == "default" or not scaling.get("mscale_all_dim"):
        return 1.0
    return magnitude(float(scaling["factor"]), float(scaling["mscale_all_dim"])) ** 2
