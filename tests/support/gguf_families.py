"""The tiny checkpoints of ``tiny_families`` as GGUF files, with the names, keys and layouts that llama.cpp's converter
writes: rows of q and k in pairs where the architecture rotates neighbours, 1 added to gemma's norms, experts in one
tensor, gate and up of gpt-oss apart, divisors of frequencies as tensors.

The facts are those of llama.cpp's converter and loader at the vendored sources of llama-cpp-python 0.3.36; the file is
written by the ``gguf`` package. ``tests/architectures/test_llama_cpp.py`` has llama.cpp itself run these files.

The file is long because it has one table: each family's keys and layouts, which its writer reads together.
"""

from __future__ import annotations

import itertools
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

from tests.support.family_table import FULL, LINEAR_ATTENTION, SLIDING
from tests.support.gguf_gemma4 import EXPERTS as GEMMA4_EXPERTS
from tests.support.gguf_gemma4 import add_gemma4, still_pairs, text_config
from tests.support.gguf_hybrids import DELTA_NAMES, add_falcon, delta_tensor, with_factors
from tests.support.gguf_routing import DELTA, LATENT, NAMES, NEMOTRON_NAMES, ROUTED, add_nemotron, add_routed, by_heads
from tests.support.tiny import llama3_frequency_divisors
from tests.support.tiny_families import added_to_one, write_folder

Array = npt.NDArray[np.float32]

ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "mistral": "llama", "ministral3": "mistral3",
    "smollm3": "smollm3", "granite": "granite", "granitemoehybrid": "granite",
    "phi3": "phi3", "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma4_text": "gemma4",
    "gemma4_unified_text": "gemma4", "muse_glimmer_text": "muse-glimmer",
    "olmo2": "olmo2", "olmo3": "olmo2", "gpt_oss": "gpt-oss", "mixtral": "llama", "qwen3_moe": "qwen3moe",
    "qwen2_vl_text": "qwen2vl", "qwen3_vl_text": "qwen3vl", "qwen3_vl_moe_text": "qwen3vlmoe",
    "gemma": "gemma", "olmoe": "olmoe", "qwen2_moe": "qwen2moe", "seed_oss": "seed_oss", "exaone4": "exaone4",
    "ernie4_5": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe", "glm4": "glm4", "arcee": "arcee",
    "hunyuan_v1_dense": "hunyuan-dense",
    "starcoder2": "starcoder2", "cohere2": "cohere2", "apertus": "apertus", "lfm2": "lfm2", "lfm2_moe": "lfm2moe",
    "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next",
    "glm4_moe": "glm4moe", "granite_swa": "granite_swa", "granitemoe_swa": "granite_swa", "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe", "mellum": "mellum", "afmoe": "afmoe", "laguna": "laguna",
    "bailing_moe_v2": "bailingmoe2", "minicpm": "minicpm",
    "falcon_h1": "falcon-h1", "kimi_linear": "kimi-linear", "bailing_hybrid": "bailingmoe3",
    **dict.fromkeys(LATENT, "deepseek2"),
}  # fmt: skip
"""``model_type`` to ``general.architecture``."""
PAIRED = (
    "llama", "mistral3", "smollm3", "granite", "granitehybrid", "granitemoe", "granite_swa", "arcee", "minicpm",
    "muse-glimmer",
)  # fmt: skip
"""Architectures whose rotary pairs are neighbours: rows of q and k are interleaved against Hugging Face's halves."""
TILED = ("qwen35", "qwen35moe")
"""Architectures whose heads of values stand in turn by their groups of keys."""
DELTA_NETS = (*TILED, "qwen3next")


def architecture(config: Any) -> str:
    """What a file calls a model of that config: recurrent Granite and Nemotron-H have names of their own."""
    if config.model_type == "granitemoehybrid" and LINEAR_ATTENTION in config.layer_types:
        return "granitehybrid"
    if config.model_type == "nemotron_h":
        return "nemotron_h_moe" if "moe" in config.layers_block_type else "nemotron_h"
    return ARCHITECTURES[config.model_type]


LAYER_NORMS = {"starcoder2": "norm_epsilon", "cohere2": "layer_norm_eps"}
"""Families with layer norms, and what their configs call the epsilon."""

_AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_NAMES = {
    "input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.sinks": "attn_sinks",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_ba": "ssm_ba",
    **{f"{one}.conv1d": "ssm_conv1d" for one in ("linear_attn", "mamba")},
    **{f"{one}.norm": "ssm_norm" for one in ("linear_attn", "mamba")},
    **{f"{one}.out_proj": "ssm_out" for one in ("linear_attn", "mamba")},
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
    "mamba.in_proj": "ssm_in", "block_sparse_moe.router.layer": "ffn_gate_inp",
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj", "conv.conv": "shortconv.conv", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
    "feed_forward.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    **NAMES, **NEMOTRON_NAMES, **DELTA_NAMES,
    "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
    "attention.query_layernorm": "attn_q_norm", "attention.key_layernorm": "attn_k_norm",
    "self_attn.g_proj": "attn_gate", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm", "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale",
    "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
    "pre_mlp_layernorm": "ffn_norm", "self_attn.gate_proj": "attn_gate", "mlp.router.gate": "ffn_gate_inp",
}  # fmt: skip
_EXPERT = re.compile(r"(?:block_sparse_moe|mlp|feed_forward|mixer)\.experts\.(\d+)\.(\w+)")
_GRANITE_MLP = re.compile(r"(block_sparse_moe|shared_mlp)\.(input|output)_linear\.")
_SWASH = {
    "block_sparse_moe.experts.gate_up_proj": "gate_up_exps", "block_sparse_moe.experts.down_proj": "down_exps",
    "block_sparse_moe.router.weight": "gate_inp", "shared_mlp.input_linear.weight": "up_shexp",
    "shared_mlp.output_linear.weight": "down_shexp",
}  # fmt: skip
"""A mixture of Granite with windows, which keeps gate and up in one tensor."""
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
    config = text_config(model)
    writer = gguf.GGUFWriter(file, architecture(config))
    writer.add_name("tiny")
    add_keys(writer, config)
    if config.model_type == "apertus":
        _add_xielu(writer, model)
    for key, value in (metadata or {}).items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
                 list: writer.add_array}  # fmt: skip
        kinds[type(value)](key, value)
    tensors = gguf_tensors(model)
    change(writer.kv_data[0], tensors)
    for name, values in tensors.items():
        wanted = experts if experts and "_exps" in name else quant
        kind = gguf.GGMLQuantizationType[wanted]
        floats = ("ffn_gate_inp", "ssm_conv1d", "shortconv.conv", "ssm_norm")
        if values.ndim == 1 or any(one in name for one in floats) or not name.endswith(".weight"):
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
    config = text_config(model)
    with tempfile.TemporaryDirectory() as made:
        folder = write_folder(Path(made), model)
        stored = {
            re.sub(r"^(model\.language_model|backbone)\.", "model.", name): tensor.numpy()  # Nemotron-H's, by version
            for name, tensor in load_file(folder / "model.safetensors").items()
            if "visual." not in name
        }
    found: dict[str, Array] = {}
    gathered: dict[str, list[Array]] = {}
    for name, values in sorted(stored.items(), key=lambda item: _in_order(item[0])):
        if name.endswith("norm.weight") and added_to_one(name, config):
            values = values + 1
        if ".act_fn." in name:  # keys, below
            continue
        for target, part in _converted(name, values, config):
            if target.endswith("_exps.weight") and part.ndim == 2:
                gathered.setdefault(target, []).append(part)
            else:
                found[target] = np.ascontiguousarray(part)
    found |= {target: np.stack(parts) for target, parts in gathered.items()}
    if config.model_type == "muse_glimmer_text":  # norms without weights, the factor on queries in one of them
        for layer, (x, value) in itertools.product(range(config.num_hidden_layers), factors_of(config)):
            found[f"blk.{layer}.attn_{x}_norm.weight"] = np.full(config.head_dim, value, np.float32)
    return found | _divisors(config)


def factors_of(config: Any) -> list[tuple[str, float]]:
    return [("q", config.qk_scale_factor), ("k", 1.0)]


def _in_order(name: str) -> list[Any]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _converted(name: str, values: Array, config: Any) -> list[tuple[str, Array]]:
    """The tensors that one of the folder's becomes."""
    outside = {
        "model.embed_tokens": "token_embd", "model.word_embeddings": "token_embd",
        "model.norm": "output_norm", "lm_head": "output",
        "model.embedding_norm": "token_embd_norm", "model.embeddings": "token_embd", "model.norm_f": "output_norm",
        "model.embed_tokens_per_layer": "per_layer_token_embd", "model.final_layernorm": "output_norm",
        "model.per_layer_model_projection": "per_layer_model_proj",
        "model.per_layer_projection_norm": "per_layer_proj_norm",
    }  # fmt: skip
    stem, _, kind = name.rpartition(".")
    if config.model_type == "falcon_h1":
        values = with_factors(name, values, config)
    if stem in outside:
        return [(f"{outside[stem]}.{kind}", values)]
    _, _, layer, rest = name.split(".", 3)
    block = f"blk.{layer}."
    if rest.startswith("mlp.experts.") and config.model_type == "gpt_oss":
        return [(block + target, part) for target, part in _gpt_oss_experts(rest, values)]
    if config.model_type == "gemma4_text" and rest in GEMMA4_EXPERTS:
        return [(block + GEMMA4_EXPERTS[rest], values)]
    if rest in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):  # Qwen3-VL's, by any release the same in files
        parts = [("down", values)] if "down" in rest else zip(("gate", "up"), np.split(values, 2, axis=1), strict=True)
        return [(f"{block}ffn_{part}_exps.weight", rows) for part, rows in parts]
    if config.model_type == "granitemoe_swa" and rest in _SWASH:
        return [(f"{block}ffn_{_SWASH[rest]}.weight", values)]
    if found := _GRANITE_MLP.match(rest):
        suffix = "_exps" if found[1] == "block_sparse_moe" else "_shexp" if config.num_local_experts else ""
        parts = np.split(values, 2, axis=-2) if found[2] == "input" else [values]
        names = ("gate", "up") if found[2] == "input" else ("down",)
        return [(f"{block}ffn_{part}{suffix}.weight", rows) for part, rows in zip(names, parts, strict=True)]
    if found := _EXPERT.match(rest):
        return [(f"{block}ffn_{_EXPERT_NAMES[found[2]]}_exps.weight", values)]
    if rest in ("self_attn.kv_b_proj.weight", "attention.kv_b_proj.weight"):
        return by_heads(block, values, config)
    if rest.endswith("sinks"):
        return [(block + "attn_sinks.weight", values)]
    if rest == "linear_attn.in_proj_qkvz.weight":
        return _apart(block, values, config)
    if "linear_attn." in rest and architecture(config) in TILED:
        values = in_tiles(rest, values, config)
    alone = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias", "expert_bias": "exp_probs_b.bias",
             "e_score_correction_bias": "exp_probs_b.bias"}  # fmt: skip
    if (name := alone.get(rest.split(".")[-1])) is not None:
        if name == "ssm_a":
            values = np.exp(values) if config.model_type == "bailing_hybrid" else -np.exp(values)
        column = name in ("ssm_a", "ssm_d") and not rest.startswith("linear_attn.") and values.ndim == 1
        return [(block + name, values[:, None] if column else values)]
    if config.model_type in DELTA and (found := delta_tensor(rest, values, config)):
        return [(block + found[0], found[1])]
    if rest.endswith(("conv1d.weight", "conv.conv.weight")):
        values = values[:, 0]
    if rest in ("mamba.norm.weight", "mixer.norm.weight"):
        values = values.reshape(config.n_groups if config.model_type == "nemotron_h" else config.mamba_n_groups, -1)
    if rest == "pre_ff_layernorm.weight":  # the converter's name for it has no kind
        return [(f"{block}ffn_norm", values)]
    if rest == "layer_scalar":
        rest += ".weight"
    stem, _, kind = rest.rpartition(".")
    names = _NAMES | {"post_attention_layernorm": "ffn_norm"}
    after = ("gemma2", "gemma3_text", "gemma4_text", "olmo2", "olmo3", "gpt_oss", "exaone4", "seed_oss",
             "glm4_moe", "afmoe", "muse_glimmer_text")  # fmt: skip
    if config.model_type in after or architecture(config) in DELTA_NETS:
        names = _NAMES | _AFTER
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    if stem in heads and architecture(config) in PAIRED:
        values = in_pairs(values, heads[stem])
    return [(f"{block}{names[stem]}.{kind}", values)]


def _apart(block: str, values: Array, config: Any) -> list[tuple[str, Array]]:
    """Qwen3-Next's fused matrix, which has q, k, v and the gate of each head of keys, as two."""
    groups, key = config.linear_num_key_heads, config.linear_key_head_dim
    of_values = config.linear_num_value_heads // groups * config.linear_value_head_dim
    by_head = values.reshape(groups, -1, values.shape[1])
    parts = np.split(by_head, np.cumsum([key, key, of_values]), axis=1)
    q, k, v, gate = (part.reshape(-1, values.shape[1]) for part in parts)
    return [(f"{block}attn_qkv.weight", np.concatenate([q, k, v])), (f"{block}attn_gate.weight", gate)]


def in_tiles(rest: str, values: Array, config: Any) -> Array:
    """Heads of values, which stand by the group of keys that they have, in turn by group (Qwen3.5's files)."""
    groups, heads = config.linear_num_key_heads, config.linear_num_value_heads
    keys, value = 2 * groups * config.linear_key_head_dim, config.linear_value_head_dim

    def turned(rows: Array) -> Array:
        return rows.reshape(groups, heads // groups, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    if "in_proj_qkv" in rest or "conv1d" in rest:
        return np.concatenate([values[:keys], turned(values[keys:])])
    if "out_proj" in rest:
        return turned(values.T).T
    if rest.endswith(("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
        return turned(values)
    assert values.shape == (value,), rest  # the norm, of every head
    return values


def as_in_file(name: str, values: Array, config: Any) -> Array:
    """A weight, by its name here, with its heads in the order that a file has them in, and with the file's factors."""
    config = config.get_text_config()
    if config.model_type == "falcon_h1":
        return with_factors(name, values, config)
    if architecture(config) not in TILED or ".linear_attn." not in name:
        return values
    rows = values.reshape(-1, config.linear_conv_kernel_dim) if "conv1d" in name else values
    return np.ascontiguousarray(in_tiles(name, rows, config)).reshape(values.shape)


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
    if config.model_type in ("nemotron_h", "kimi_linear"):  # which know no rope
        return {}
    rope, _ = rope_of(config)
    if rope["rope_type"] == "llama3":
        return {"rope_freqs.weight": llama3_frequency_divisors(head_size(config), rope["rope_theta"], rope)}
    if rope["rope_type"] == "proportional":
        return still_pairs(config, rope["partial_rotary_factor"])
    if rope["rope_type"] == "longrope":
        return {
            f"rope_factors_{which}.weight": np.array(rope[f"{which}_factor"], np.float32) for which in ("long", "short")
        }
    return {}


def add_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    """The keys that the converter writes for the config's family."""
    kind = config.model_type
    if kind == "nemotron_h":
        return add_nemotron(writer, config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if kind != "qwen3_5_moe_text":
        writer.add_feed_forward_length(mlp_size(config))
    writer.add_head_count(getattr(config, "num_attention_heads_per_layer", None) or config.num_attention_heads)
    kv_heads: Any = config.num_key_value_heads
    if kind in ("granitemoehybrid", "lfm2", "lfm2_moe", *DELTA):
        kv_heads = [(1 if kind in DELTA else kv_heads) if one == FULL else 0 for one in config.layer_types]
    writer.add_head_count_kv(1 if kind in LATENT else kv_heads)
    if kind in LAYER_NORMS:
        writer.add_layer_norm_eps(getattr(config, LAYER_NORMS[kind]))
    else:
        writer.add_layer_norm_rms_eps(config.norm_eps if kind in ("lfm2", "lfm2_moe") else config.rms_norm_eps)
    if kind == "phi3":
        return _add_phi3(writer, config)
    if getattr(config, "head_dim", None) is not None and kind not in ("granite", "lfm2", "lfm2_moe", *LATENT, *DELTA):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if kind == "gemma2":  # its rope is not said: theta 10000
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        return writer.add_sliding_window(config.sliding_window)
    if kind == "gemma":  # nor is its
        return None
    if kind != "kimi_linear":
        _add_rope(writer, config)
    if architecture(config) in PAIRED and kind != "muse_glimmer_text":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_size(config))
    if "_vl_" in kind or architecture(config) in TILED:
        writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])
    if kind.startswith("qwen3_vl"):
        writer.add_num_deepstack_layers(1)
    if kind == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(config.rope_parameters["mscale_all_dim"])
        writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])
    elif kind == "minicpm":
        if config.rope_parameters["rope_type"] == "longrope":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_embedding_scale(config.scale_emb)
        writer.add_residual_scale(config.scale_depth / config.num_hidden_layers**0.5)
        writer.add_logit_scale(config.hidden_size / config.dim_model_base)
    elif architecture(config).startswith("granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        if kind == "granitemoehybrid":  # of dense ones too: what is for layers and experts that there are not
            writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
            writer.add_ssm_conv_kernel(config.mamba_d_conv)
            writer.add_ssm_state_size(config.mamba_d_state)
            writer.add_ssm_group_count(config.mamba_n_groups)
            writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
            writer.add_ssm_time_step_rank(config.mamba_n_heads)
            writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
        if "swa" in kind:
            writer.add_sliding_window(config.sliding_window)
            writer.add_sliding_window_pattern([one == SLIDING for one in config.layer_types])
        if kind != "granitemoehybrid" and getattr(config, "shared_intermediate_size", 0):
            writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
        if architecture(config) != "granite" and getattr(config, "num_local_experts", 0):
            writer.add_expert_count(config.num_local_experts)
            writer.add_expert_used_count(config.num_experts_per_tok)
    elif kind in ("mellum", "afmoe"):
        writer.add_sliding_window(config.sliding_window)
        if kind == "afmoe":
            writer.add_vocab_size(config.vocab_size)
            writer.add_rope_dimension_count(head_size(config))
        else:
            writer.add_sliding_window_pattern([one == SLIDING for one in config.layer_types])
    elif kind == "muse_glimmer_text":
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_logit_scale(config.output_multiplier)
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([one == SLIDING for one in config.layer_types])
    elif kind == "falcon_h1":
        add_falcon(writer, config)
    elif kind == "gemma4_text":
        add_gemma4(writer, config)
    elif kind == "gemma3_text":
        _add_gemma3(writer, config)
    elif kind == "olmo3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([one == SLIDING for one in config.layer_types])
    elif kind == "glm4":
        writer.add_rope_dimension_count(int(head_size(config) * config.rope_parameters["partial_rotary_factor"]))
    elif kind == "exaone4":
        writer.add_vocab_size(config.vocab_size)
        if config.sliding_window is not None:
            writer.add_sliding_window(config.sliding_window)
            writer.add_sliding_window_pattern([one == SLIDING for one in config.layer_types])
    elif kind == "cohere2":
        writer.add_logit_scale(config.logit_scale)
        writer.add_sliding_window(config.sliding_window)
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_size(config))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    elif kind in ("lfm2", "lfm2_moe"):
        writer.add_shortconv_l_cache(config.conv_L_cache)
        writer.add_vocab_size(config.vocab_size)
    elif architecture(config) in DELTA_NETS:
        _add_delta_net(writer, config)
    if kind in ("gpt_oss", "mixtral", "qwen3_moe", "olmoe", "qwen2_moe", "lfm2_moe", "qwen3_5_moe_text",
                "qwen3_next", "mellum", "afmoe", "qwen3_vl_moe_text", "ernie4_5_moe",
                "laguna", "bailing_moe_v2"):  # fmt: skip
        _add_experts(writer, config)
    if kind in ROUTED:
        add_routed(writer, config)


def mlp_size(config: Any) -> int:
    """What the MLP has: LFM2's configs may say more than that."""
    inner: int = config.intermediate_size
    if config.model_type == "lfm2" and config.block_auto_adjust_ff_dim:
        return -(-int(2 * inner / 3) // config.block_multiple_of) * config.block_multiple_of
    return inner


def _add_delta_net(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_array(f"{architecture(config)}.attention.recurrent_layers",
                     [one == LINEAR_ATTENTION for one in config.layer_types])  # fmt: skip
    writer.add_full_attention_interval(4)
    writer.add_rope_dimension_count(int(head_size(config) * config.rope_parameters["partial_rotary_factor"]))


def _add_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    rope, local = rope_of(config)
    theta, alpha = rope["rope_theta"], rope.get("alpha")
    if alpha:  # Hunyuan's: the base is that for every length
        size = head_size(config)
        theta *= alpha ** (size / (size - 2))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)
    writer.add_rope_freq_base(theta)
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
    writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type in ("lfm2_moe", "qwen3_5_moe_text", "qwen3_next"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "lfm2_moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    elif config.model_type in ("qwen3_5_moe_text", "qwen3_next"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    elif config.model_type == "afmoe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(config.route_scale)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    elif config.model_type in ("qwen3_moe", "qwen2_moe", "mellum", "qwen3_vl_moe_text"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if config.model_type == "qwen2_moe":
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    elif config.model_type == "bailing_moe_v2":
        writer.add_rope_dimension_count(int(config.head_dim * config.partial_rotary_factor))
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_vocab_size(config.vocab_size)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_intermediate_size * config.num_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
        writer.add_nextn_predict_layers(config.num_nextn_predict_layers)
    elif config.model_type == "laguna":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(config.moe_routed_scaling_factor)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
        full, local = rope_of(config)
        writer.add_rope_dimension_count(int(config.head_dim * full.get("partial_rotary_factor", 1.0)))
        writer.add_rope_dimension_count_swa(int(config.head_dim * local.get("partial_rotary_factor", 1.0)))
        if SLIDING in config.layer_types:
            writer.add_sliding_window(config.sliding_window)
    elif config.model_type == "ernie4_5_moe":
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        if config.moe_num_shared_experts:  # not the size that the shared experts have
            writer.add_expert_shared_feed_forward_length(config.intermediate_size // config.num_key_value_heads)
    elif config.model_type == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_sliding_window(config.sliding_window)


def _add_xielu(writer: gguf.GGUFWriter, model: Any) -> None:
    """The parameters of each layer's activation, one list of each."""
    acts = [layer.mlp.act_fn for layer in model.model.layers]
    for name in ("alpha_n", "alpha_p", "beta", "eps"):
        getattr(writer, f"add_xielu_{name}")([float(getattr(act, name)) for act in acts])
