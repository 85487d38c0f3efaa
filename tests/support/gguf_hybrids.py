"""What llama.cpp's converter makes of Falcon-H1 and of Kimi delta attention."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

from tests.support.gguf_routing import NAMES, Array

DELTA_NAMES = {
    **{f"{part}.{x}_conv1d": f"ssm_conv1d_{x}" for part in ("self_attn", "attention") for x in "qkv"},
    **{f"{part}.{x}": y for part in ("self_attn", "attention") for x, y in (
        ("b_proj", "ssm_beta"), ("o_norm", "ssm_norm"), ("f_a_proj", "ssm_f_a"), ("f_b_proj", "ssm_f_b"),
        ("g_a_proj", "ssm_g_a"), ("g_b_proj", "ssm_g_b"), ("f_proj", "ssm_f_a"), ("dense", "attn_output"))},
    **{f"attention.{x}_proj": f"attn_{x}" for x in "qkv"},
    **{name.replace("self_attn.", "attention."): target for name, target in NAMES.items() if "self_attn." in name},
    **{f"block_sparse_moe.shared_experts.{one}_proj": f"ffn_{one}_shexp" for one in ("gate", "up", "down")},
    **{f"block_sparse_moe.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")},
}  # fmt: skip


def inner_size(config: Any) -> int:
    """Values of Falcon-H1's recurrent heads."""
    return int(config.mamba_d_ssm or config.mamba_expand * config.hidden_size)


def add_falcon(writer: gguf.GGUFWriter, config: Any) -> None:
    """The keys of Falcon-H1's recurrent part."""
    writer.add_vocab_size(config.vocab_size)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_inner_size(inner_size(config))
    writer.add_ssm_time_step_rank(config.mamba_n_heads)


def delta_tensor(rest: str, values: Array, config: Any) -> tuple[str, Array] | None:
    """A tensor of a layer with delta attention under its name in the file, if it is not as its name in ``_NAMES``."""
    if rest.endswith("conv1d.weight"):
        return f"{DELTA_NAMES[rest.removesuffix('.weight')]}.weight", values[None, :, None, 0]
    if rest == "attention.g_proj.weight":
        return ("attn_gate" if len(values) == config.num_attention_heads else "ssm_g_a") + ".weight", values
    return None


def with_factors(name: str, values: Array, config: Any) -> Array:
    """A weight of Falcon-H1, by its name in a folder or here, with the factors that files have in it."""
    gate, down = config.mlp_multipliers
    read, of_keys = config.attention_in_multiplier, config.key_multiplier
    inner, state = inner_size(config), config.mamba_n_groups * config.mamba_d_state
    sizes = (inner, inner, state, state, config.mamba_n_heads)
    rows = np.repeat(np.array(config.ssm_multipliers, np.float32), sizes)[:, None] * config.ssm_in_multiplier
    factors: dict[str, Any] = {
        "embed_tokens": config.embedding_multiplier, "lm_head": config.lm_head_multiplier, "gate_proj": gate,
        "down_proj": down, "q_proj": read, "k_proj": of_keys * read, "v_proj": read,
        "o_proj": config.attention_out_multiplier, "out_proj": config.ssm_out_multiplier, "mamba.in_proj": rows,
        "mamba.gate_proj": rows[:inner], "mamba.inputs_proj": rows[inner : -config.mamba_n_heads],
        "mamba.steps_proj": rows[-config.mamba_n_heads :],
    }  # fmt: skip
    module = ".".join(name.split(".")[-3:-1])
    factor = factors.get(module, factors.get(module.rpartition(".")[2], 1.0))
    return np.asarray(values * factor, np.float32)
