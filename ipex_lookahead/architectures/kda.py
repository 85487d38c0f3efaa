"""Keys and tensors of models with Kimi delta attention in most layers and latent attention in the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_lookahead.architectures import latent, routing
from ipex_lookahead.architectures.hparams import (
    MAX_HEAD_DIM,
    SIZES,
    Check,
    Source,
    check_one_per_layer,
    integer,
    list_of,
)
from ipex_lookahead.architectures.keys import GgufSource
from ipex_lookahead.architectures.mamba import MAX_KERNEL
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.spec import KimiDeltaAttention, Linear, Place, Tensor

LINEAR, FULL = "linear_attention", "full_attention"
DENSE, SPARSE = "dense", "sparse"
_ALIASES = {
    "model_max_length": "max_position_embeddings", "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
}  # fmt: skip
"""Names of keys in published configs -> names here."""
_USED: Mapping[str, Check] = {
    **common_keys("hidden_act tie_word_embeddings"),
    **latent.KEYS,
    **routing.KEYS,
    "layer_types": list_of(LINEAR, FULL),
    "mlp_layer_types": list_of(DENSE, SPARSE),
    "linear_head_dim": integer(1, MAX_HEAD_DIM),
    "linear_num_heads": integer(1, 1 << 12),
    "linear_conv_kernel_dim": integer(1, MAX_KERNEL),
}
KEYS: Mapping[str, Check] = {
    **_USED,
    **{other: {**_USED, **SIZES}[key] for other, key in _ALIASES.items()},
}
NULLABLE = ("q_lora_rank", "layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads")
DEFAULTS: Mapping[str, Any] = {
    **latent.DEFAULTS, "q_lora_rank": None, "num_key_value_heads": 32, "num_attention_heads": 32,
    "hidden_act": "silu", "tie_word_embeddings": False, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "norm_topk_prob": True, "layer_types": None, "mlp_layer_types": None, "linear_conv_kernel_dim": 4,
    "attention_bias": False,
}  # fmt: skip
NEUTRAL: Mapping[str, str] = {
    "output_router_logits": "additional outputs",
    "pretraining_tp": "the parallelism of training",
    "qk_head_dim": "the sum of qk_nope_head_dim and qk_rope_head_dim",
}
GGUF_USED: Mapping[str, str] = {
    **{key: name for key, name in latent.GGUF_USED.items() if not key.startswith("rope_scaling.")},
    **routing.GGUF_USED,
    "linear_head_dim": "kda.head_dim",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}
GGUF_NEUTRAL: Mapping[str, str] = {
    "attention.key_length_mla": "read with attention.kv_lora_rank",
    "attention.value_length_mla": "read with attention.kv_lora_rank",
    "expert_gating_func": "sigmoid in all models of the architecture",
}


def rename(config: dict[str, Any]) -> None:
    """Store published keys under the names here."""
    for other, key in _ALIASES.items():
        if (value := config.pop(other, None)) is not None:
            config[key] = value


def check(config: dict[str, Any], source: Source, *, experts: int) -> None:
    """Fill in what each layer is, and check sizes against each other; ``experts`` is the default number of experts.

    Raises:
        ModelFormatError: if lists have other lengths than there are layers, or sizes contradict each other.
    """
    first = config.pop("first_k_dense_replace")
    if config["mlp_layer_types"] is None:
        config["mlp_layer_types"] = [DENSE if i < first else SPARSE for i in range(config["num_hidden_layers"])]
    for key in ("layer_types", "mlp_layer_types"):
        check_one_per_layer(config, source, key)
    latent.check(config, source)
    routing.check(config, source, default=experts)


def complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Fill in what latents and mixtures derive, and the sizes of delta attention."""
    blocks = config["num_hidden_layers"]
    latent.complete(file, config)
    routing.complete(file, config)
    config["layer_types"] = config["layer_types"][: config["num_hidden_layers"]] if "layer_types" in config else None
    if config["layer_types"] is None:
        key = f"{file.scalar('general.architecture')}.attention.head_count_kv"
        raise file.error(key, file.offsets.get(key), f"must be a list of {blocks} numbers, 0 for delta attention")
    config["linear_num_heads"] = config["num_attention_heads"]


def delta_attention(
    names: Names, layer: int, module: str, *, low_rank: bool, bound: float | None
) -> KimiDeltaAttention:
    """Return the mixer of block ``layer``.

    Args:
        names: tensors of the model.
        layer: number of the block.
        module: name of the mixer in a folder.
        low_rank: True if decays and gates are products of two matrices (Kimi).
        bound: see ``KimiDeltaAttention.decay_bound``.
    """
    config, hidden = names.config, names.hidden
    heads, d, kernel = (config[f"linear_{one}"] for one in ("num_heads", "head_dim", "conv_kernel_dim"))
    width, ours, theirs = heads * d, f"model.layers.{layer}.{module}", f"blk.{layer}"

    def convolution(x: str) -> Tensor:
        name, shape = f"{ours}.{x}_conv1d.weight", (width, 1, kernel)
        gguf = Place(f"{theirs}.ssm_conv1d_{x}.weight", (1, width, 1, kernel))
        return Tensor(name, (width * kernel,), Place(name, shape), gguf)

    def projection(x: str, outputs: int) -> dict[str, Any]:
        field = "steps" if x == "f" else "gate"
        if not low_rank:
            return {field: names.linear(layer, f"{module}.{x}_proj", f"ssm_{x}_a", outputs, hidden)}
        return {
            f"{field}_a": names.linear(layer, f"{module}.{x}_a_proj", f"ssm_{x}_a", d, hidden),
            field: names.linear(layer, f"{module}.{x}_b_proj", f"ssm_{x}_b", outputs, d),
        }

    rate_shape = (1, 1, heads, 1) if low_rank else (heads,)
    rate = Place(
        f"{theirs}.ssm_a",
        rate_shape if low_rank else (heads, 1),
        negative_exponential=low_rank,
        exponential=not low_rank,
    )
    out = names.linear(layer, f"{module}.o_proj", "attn_output", hidden, width)
    return KimiDeltaAttention(
        heads=heads,
        head_dim=d,
        kernel=kernel,
        decay_bound=bound,
        q=names.linear(layer, f"{module}.q_proj", "attn_q", width, hidden),
        k=names.linear(layer, f"{module}.k_proj", "attn_k", width, hidden),
        v=names.linear(layer, f"{module}.v_proj", "attn_v", width, hidden),
        beta=names.linear(layer, f"{module}.b_proj", "ssm_beta", heads, hidden),
        q_convolution=convolution("q"),
        k_convolution=convolution("k"),
        v_convolution=convolution("v"),
        rate=Tensor(f"{ours}.A_log", (heads,), Place(f"{ours}.A_log", rate_shape), rate),
        step_bias=names.vector(layer, f"{module}.dt_bias", "ssm_dt.bias", width),
        norm=names.norm(layer, f"{module}.o_norm", "ssm_norm", d),
        out=known_as(out, f"{ours}.dense.weight"),
        **projection("f", width),
        **projection("g", width),
    )


def known_as(linear: Linear, *names: str) -> Linear:
    """Return a linear layer, without a bias, that folders may also have under these names."""
    weight = linear.weight
    return Linear(Tensor(weight.name, weight.shape, Place(weight.hf.name, weight.hf.shape, also=names), weight.gguf))
