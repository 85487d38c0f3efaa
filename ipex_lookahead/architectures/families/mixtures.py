"""Dense families with experts instead of the MLP, one row each; see ``dense.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_lookahead.architectures import rules
from ipex_lookahead.architectures.dense import Config, Dense, keys
from ipex_lookahead.architectures.experts import check_experts, need_counts
from ipex_lookahead.architectures.hparams import (
    MAX_CONTEXT,
    MAX_LAYERS,
    SIZES,
    Source,
    boolean,
    check_even_heads,
    integer,
    layer_numbers,
    optional,
)
from ipex_lookahead.architectures.keys import GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.spec import Experts, FeedForward
from ipex_lookahead.architectures.windows import fill_layer_types, one_kind_of_layer
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

_TRAINING = {
    "output_router_logits": "additional outputs",
    "router_aux_loss_coef": "training only",
}
_PARTS = ("gate_proj", "up_proj", "down_proj")
_GGUF_COUNTS = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_GGUF_SIZES = {**_GGUF_COUNTS, "moe_intermediate_size": "expert_feed_forward_length"}


def _mixture(names: Names, layer: int, key: str = "num_experts", module: str = "mlp", **more: Any) -> Experts:
    """Return the experts of a block; ``key`` is the config's key for their number."""
    config = names.config
    return names.experts(
        layer,
        module,
        more.pop("parts", _PARTS),
        count=config[key],
        used=config["num_experts_per_tok"],
        inner=config.get("moe_intermediate_size", config["intermediate_size"]),
        renormalise=config.get("norm_topk_prob", True),
        **more,
    )


SPARSE = {"norm_topk_prob": boolean, "decoder_sparse_step": integer(1, MAX_LAYERS), "mlp_only_layers": layer_numbers}
"""Keys of Qwen's mixtures that select layers with an MLP instead -> check."""
_ALL_SPARSE: Config = {"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []}


def check_dense(config: Config, source: Source) -> None:
    """Raise if ``mlp_only_layers`` names a layer that does not exist."""
    dense, layers = config["mlp_only_layers"], config["num_hidden_layers"]
    if dense and dense[-1] >= layers:
        raise source.error("mlp_only_layers", f"names layer {dense[-1]}; the last of {layers} is {layers - 1}")


def is_dense(config: Mapping[str, Any], layer: int) -> bool:
    """Return True if a layer has an MLP instead of experts."""
    return layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"] != 0


def _check_olmoe(config: Config, source: Source) -> None:
    check_even_heads(config, source)
    check_experts(config, source, "num_experts", default=64)


def _check_qwen3(config: Config, source: Source) -> None:
    check_experts(config, source, "num_experts", default=128)
    check_dense(config, source)
    full = config.pop("max_window_layers", None)
    if not config["use_sliding_window"]:
        config["sliding_window"] = None
    elif full and config["sliding_window"] is not None:
        raise UnsupportedModelError(
            f"{source.file}: max_window_layers is {full} and use_sliding_window is true; depending on its release, "
            "transformers gives a window to all layers or only to those from that one on. It must be 0 or absent"
        )


def _check_qwen2(config: Config, source: Source) -> None:
    check_even_heads(config, source)
    check_experts(config, source, "num_experts", default=60)
    check_dense(config, source)
    config.pop("max_window_layers", None)
    if not config["use_sliding_window"] or config["sliding_window"] == 0:
        config["sliding_window"] = None
    elif config.get("layer_types") is None and config["sliding_window"] is not None:
        raise UnsupportedModelError(
            f"{source.file}: use_sliding_window is true, but layer_types is missing; releases of transformers differ"
            " about the layers with a window in a qwen2_moe",
            hint="list the layers in layer_types",
        )
    fill_layer_types(config, source, lambda layer: False)


def _complete(file: GgufSource, config: Config, architecture: str) -> None:
    need_counts(file, architecture)
    if "moe_intermediate_size" not in config:  # missing in the first files, which follow this rule
        config["moe_intermediate_size"] = max(1, config["intermediate_size"] // config["num_experts_per_tok"])


def _complete_qwen2(file: GgufSource, config: Config) -> None:
    _complete(file, config, "qwen2moe")
    config.setdefault("shared_expert_intermediate_size", config["intermediate_size"])


def _qwen3(names: Names, layer: int) -> FeedForward:
    return names.gated_mlp(layer) if is_dense(names.config, layer) else _mixture(names, layer)


def _qwen2(names: Names, layer: int) -> FeedForward:
    if is_dense(names.config, layer):
        return names.gated_mlp(layer)
    shared = names.shared_expert(layer, "mlp.shared_expert", names.config["shared_expert_intermediate_size"])
    gate = names.linear(layer, "mlp.shared_expert_gate", "ffn_gate_inp_shexp", 1, names.hidden)
    return _mixture(names, layer, shared=shared, shared_gate=gate)


# fmt: off
FAMILIES: Mapping[str, Dense] = {
    # GGUF files of Mixtral have architecture llama with a number of experts, and no window.
    "mixtral": Dense(
        "Mixtral 8x7B and 8x22B, and merges of this form: a Mistral with a mixture of experts in every layer.",
        keys(
            "hidden_act tie_word_embeddings sliding_window num_local_experts num_experts num_experts_per_tok",
            {
                "num_key_value_heads": 8, "max_position_embeddings": 4096 * 32, "rms_norm_eps": 1e-5,
                "rope_theta": 1000000.0, "sliding_window": None, "num_experts_per_tok": 2,
            },
            neutral={**_TRAINING, "router_jitter_noise": "training only"}, refused=one_kind_of_layer("Mixtral"),
            nullable=(),
            check=lambda config, source: check_experts(config, source, "num_local_experts", default=8),
        ),
        GgufKeys(
            "llama", "MixtralForCausalLM",
            used={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
            constants={"sliding_window": None}, complete=lambda file, config: need_counts(file, "llama"),
            claims=lambda file: not rules.is_dense(file),
        ),
        pairs=True, feed_forward=lambda names, layer: _mixture(
            names, layer, "num_local_experts", "block_sparse_moe", parts=("w1", "w3", "w2"),
        ),
    ),
    "olmoe": Dense(
        "OLMoE: a mixture of many small experts, with norms over the whole of q and of k.",
        keys(
            "hidden_act tie_word_embeddings attention_bias num_experts num_local_experts num_experts_per_tok",
            {
                "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "num_experts_per_tok": 8,
                "norm_topk_prob": False,
            },
            {"norm_topk_prob": boolean}, neutral=_TRAINING, check=_check_olmoe,
            refused={
                **one_kind_of_layer("OLMoE"),
                "clip_qkv": Refusal("clips queries, keys and values", unless=(None,)),
                "sliding_window": Refusal(
                    "limits the attention window, which transformers' OLMoE supports with some kernels only",
                    unless=(None,),
                ),
            },
        ),
        GgufKeys(
            "olmoe", "OlmoeForCausalLM", used=_GGUF_COUNTS,
            constants={"norm_topk_prob": False, "attention_bias": False},
            complete=lambda file, config: need_counts(file, "olmoe"),
        ),
        qk_norm="whole", feed_forward=_mixture,
    ),
    "qwen3_moe": Dense(
        "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder: Qwen3's attention, and a mixture of many small experts.",
        keys(
            "hidden_act tie_word_embeddings attention_bias use_sliding_window sliding_window max_window_layers"
            " num_experts num_local_experts num_experts_per_tok",
            {
                "num_key_value_heads": 4, "max_position_embeddings": 32768, "use_sliding_window": False,
                "sliding_window": 4096, "num_experts_per_tok": 8, "moe_intermediate_size": 768, **_ALL_SPARSE,
            },
            {"moe_intermediate_size": SIZES["intermediate_size"], **SPARSE},
            neutral=_TRAINING, refused=one_kind_of_layer("Qwen3-MoE"), check=_check_qwen3,
        ),
        GgufKeys(
            "qwen3moe", "Qwen3MoeForCausalLM", used=_GGUF_SIZES,
            constants={**_ALL_SPARSE, "norm_topk_prob": True, "attention_bias": False},
            complete=lambda file, config: _complete(file, config, "qwen3moe"),
        ),
        qk_norm="heads", feed_forward=_qwen3,
    ),
    "qwen2_moe": Dense(
        "Qwen1.5-MoE and Qwen2-57B-A14B: Qwen2's attention, a mixture, and a shared expert with a gate.",
        keys(
            "hidden_act tie_word_embeddings use_sliding_window sliding_window max_window_layers"
            " num_experts num_local_experts num_experts_per_tok",
            {
                "num_key_value_heads": 16, "max_position_embeddings": 32768, "use_sliding_window": False,
                "sliding_window": 4096, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, **_ALL_SPARSE,
                "shared_expert_intermediate_size": 5632, "qkv_bias": True,
            },
            {
                "sliding_window": optional(integer(0, MAX_CONTEXT)),  # transformers writes 0 for no window
                "moe_intermediate_size": SIZES["intermediate_size"], **SPARSE, **common_keys("layer_types"),
                "qkv_bias": boolean, "shared_expert_intermediate_size": SIZES["intermediate_size"],
            },
            neutral=_TRAINING, check=_check_qwen2,
        ),
        GgufKeys(
            "qwen2moe", "Qwen2MoeForCausalLM",
            used={**_GGUF_SIZES, "shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
            constants={**_ALL_SPARSE, "qkv_bias": True}, complete=_complete_qwen2,
        ),
        bias=lambda config: "qkv" if config["qkv_bias"] else "", feed_forward=_qwen2,
    ),
}
# fmt: on
"""``model_type`` -> the family."""
