"""The tiny checkpoints of ``tiny_families`` as GGUF files, with the names, keys and layouts that llama.cpp's converter
writes: rows of q and k in pairs where the architecture rotates neighbours, 1 added to gemma's norms, experts in one
tensor, gate and up of gpt-oss apart, divisors of frequencies as tensors.

The facts are those of llama.cpp's converter and loader at the vendored sources of llama-cpp-python 0.3.36; the file is
written by the ``gguf`` package. ``tests/architectures/test_llama_cpp.py`` has llama.cpp itself run these files.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize
from safetensors.torch import load_file

from tests.support.family_table import FULL, SLIDING
from tests.support.tiny import llama3_frequency_divisors
from tests.support.tiny_families import write_folder

Array = npt.NDArray[np.float32]

ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "mistral": "llama", "ministral3": "mistral3",
    "smollm3": "smollm3", "granite": "granite", "granitemoehybrid": "granite",
    "phi3": "phi3", "gemma2": "gemma2", "gemma3_text": "gemma3",
    "olmo2": "olmo2", "olmo3": "olmo2", "gpt_oss": "gpt-oss", "mixtral": "llama", "qwen3_moe": "qwen3moe",
    "qwen2_vl_text": "qwen2vl", "qwen3_vl_text": "qwen3vl",
}  # fmt: skip
"""``model_type`` to ``general.architecture``."""
PAIRED = ("llama", "mistral3", "smollm3", "granite")
"""Architectures whose rotary pairs are neighbours: rows of q and k are interleaved against Hugging Face's halves."""

_AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_NAMES = {
    "input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.sinks": "attn_sinks",
    "shared_mlp.output_linear": "ffn_down",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
}  # fmt: skip
_EXPERT = re.compile(r"(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(\w+)")
_EXPERT_NAMES = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "down_proj": "down", "up_proj": "up"}


def write_gguf(
    file: Path,
    model: Any,
    *,
    quant: str = "F32",
    experts: str | None = None,
    metadata: dict[str, Any] | None = None,
    change: Callable[[dict[str, Any], dict[str, Array]], Any] = lambda keys, tensors: None,
) -> Path:
    """Write a model of ``tiny_families`` as a GGUF file and return its path.

    ``quant`` is a type that the ``gguf`` package quantises to, for every matrix whose rows it divides (others F16);
    ``experts`` another one for the experts'. Vectors, norms, biases and routers are F32. ``metadata``: more keys.
    ``change`` may do what it likes to the keys (``gguf.GGUFValue`` by name) and the tensors before they are written.
    """
    config = model.config.get_text_config()
    writer = gguf.GGUFWriter(file, ARCHITECTURES[config.model_type])
    writer.add_name("tiny")
    add_keys(writer, config)
    for key, value in (metadata or {}).items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
                 list: writer.add_array}  # fmt: skip
        kinds[type(value)](key, value)
    tensors = gguf_tensors(model)
    change(writer.kv_data[0], tensors)
    for name, values in tensors.items():
        wanted = experts if experts and "_exps" in name else quant
        kind = gguf.GGMLQuantizationType[wanted]
        if values.ndim == 1 or "ffn_gate_inp" in name or not name.endswith(".weight"):
            kind = gguf.GGMLQuantizationType.F32
        elif values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F16
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def gguf_tensors(model: Any) -> dict[str, Array]:
    """Every tensor of the file in float32, by its name there."""
    config = model.config.get_text_config()
    with tempfile.TemporaryDirectory() as made:
        folder = write_folder(Path(made), model)
        stored = {
            name.replace("model.language_model.", "model."): tensor.numpy()
            for name, tensor in load_file(folder / "model.safetensors").items()
            if "visual." not in name
        }
    found: dict[str, Array] = {}
    gathered: dict[str, list[Array]] = {}
    for name, values in sorted(stored.items(), key=lambda item: _in_order(item[0])):
        if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        for target, part in _converted(name, values, config):
            if target.endswith("_exps.weight") and part.ndim == 2:
                gathered.setdefault(target, []).append(part)
            else:
                found[target] = np.ascontiguousarray(part)
    found |= {target: np.stack(parts) for target, parts in gathered.items()}
    return found | _divisors(config)


def _in_order(name: str) -> list[Any]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _converted(name: str, values: Array, config: Any) -> list[tuple[str, Array]]:
    """The tensors that one of the folder's becomes."""
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in outside:
        return [(f"{outside[stem]}.{kind}", values)]
    _, _, layer, rest = name.split(".", 3)
    block = f"blk.{layer}."
    if rest.startswith("mlp.experts.") and config.model_type == "gpt_oss":
        return [(block + target, part) for target, part in _gpt_oss_experts(rest, values)]
    if rest.startswith("shared_mlp.input_linear."):
        return [
            (f"{block}ffn_{part}.weight", rows) for part, rows in zip(("gate", "up"), np.split(values, 2), strict=True)
        ]
    if found := _EXPERT.match(rest):
        return [(f"{block}ffn_{_EXPERT_NAMES[found[2]]}_exps.weight", values)]
    if rest.endswith("sinks"):
        return [(block + "attn_sinks.weight", values)]
    stem, _, kind = rest.rpartition(".")
    names = _NAMES | {"post_attention_layernorm": "ffn_norm"}
    if config.model_type in ("gemma2", "gemma3_text", "olmo2", "olmo3", "gpt_oss"):
        names = _NAMES | _AFTER
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    if stem in heads and ARCHITECTURES[config.model_type] in PAIRED:
        values = in_pairs(values, heads[stem])
    return [(f"{block}{names[stem]}.{kind}", values)]


def in_pairs(values: Array, heads: int) -> Array:
    """Rows i and i + d / 2 of each head become neighbours."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _gpt_oss_experts(rest: str, values: Array) -> list[tuple[str, Array]]:
    """``gate_up_proj`` has gate and up in turn, and like ``down_proj`` inputs before outputs; biases [experts, n]."""
    kind = "bias" if rest.endswith("_bias") else "weight"
    outputs_last = values if kind == "bias" else values.swapaxes(1, 2)
    if "down_proj" in rest:
        return [(f"ffn_down_exps.{kind}", outputs_last)]
    return [(f"ffn_gate_exps.{kind}", outputs_last[:, ::2]), (f"ffn_up_exps.{kind}", outputs_last[:, 1::2])]


def rope_of(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rope of full layers and of those with a window."""
    rope = config.rope_parameters
    return (rope[FULL], rope[SLIDING]) if FULL in rope else (rope, {})


def head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _divisors(config: Any) -> dict[str, Array]:
    rope, _ = rope_of(config)
    if rope["rope_type"] == "llama3":
        return {"rope_freqs.weight": llama3_frequency_divisors(head_size(config), rope["rope_theta"], rope)}
    if rope["rope_type"] == "longrope":
        return {
            f"rope_factors_{which}.weight": np.array(rope[f"{which}_factor"], np.float32) for which in ("long", "short")
        }
    return {}


def add_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    """The keys that the converter writes for the config's family."""
    kind = config.model_type
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    kv_heads = config.num_key_value_heads
    writer.add_head_count_kv([kv_heads] * config.num_hidden_layers if kind == "granitemoehybrid" else kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if kind == "phi3":
        return _add_phi3(writer, config)
    if getattr(config, "head_dim", None) is not None and kind != "granite":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if kind == "gemma2":  # its rope is not said: theta 10000
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        return writer.add_sliding_window(config.sliding_window)
    _add_rope(writer, config)
    if ARCHITECTURES[kind] in PAIRED:
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_size(config))
    if "_vl_" in kind:
        writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])
    if kind == "qwen3_vl_text":
        writer.add_num_deepstack_layers(1)
    if kind == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(config.rope_parameters["mscale_all_dim"])
        writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])
    elif ARCHITECTURES[kind] == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        if kind == "granitemoehybrid":  # dense: what is for layers and experts that there are not
            writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
            writer.add_ssm_conv_kernel(config.mamba_d_conv)
            writer.add_ssm_state_size(config.mamba_d_state)
            writer.add_ssm_group_count(config.mamba_n_groups)
            writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
            writer.add_ssm_time_step_rank(config.mamba_n_heads)
            writer.add_rope_scaling_finetuned(True)
    elif kind == "gemma3_text":
        _add_gemma3(writer, config)
    elif kind == "olmo3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([one == SLIDING for one in config.layer_types])
    elif kind in ("gpt_oss", "mixtral", "qwen3_moe"):
        _add_experts(writer, config)


def _add_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    rope, local = rope_of(config)
    writer.add_rope_freq_base(rope["rope_theta"])
    if local:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        if "beta_slow" in rope:
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def _add_phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    rope, original = config.rope_parameters, config.original_max_position_embeddings
    rotated = int(rope["partial_rotary_factor"] * config.hidden_size) // config.num_attention_heads
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_sliding_window(config.sliding_window or 0)
    if rope["rope_type"] == "longrope":  # its type is not said: the tensors and this factor do
        ratio = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0)


def _add_gemma3(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)
    pattern = config._sliding_window_pattern
    if pattern != 6:  # the loader's default; the converter leaves the key out, the loader reads it
        writer.add_sliding_window_pattern(pattern)


def _add_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    elif config.model_type == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_sliding_window(config.sliding_window)
