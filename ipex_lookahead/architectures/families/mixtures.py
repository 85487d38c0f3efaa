"""Dense families with experts instead of the MLP, one row each; see ``dense.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures import granite, rules
from ipex_lookahead.architectures.dense import POST, PRE, Config, Dense, keys
from ipex_lookahead.architectures.experts import check_experts, need_counts
from ipex_lookahead.architectures.families.dense import GGUF_WINDOWS, GRANITE, WINDOWS
from ipex_lookahead.architectures.hparams import (
    MAX_CONTEXT,
    MAX_LAYERS,
    SIZES,
    Source,
    boolean,
    check_even_heads,
    check_one_per_layer,
    integer,
    layer_numbers,
    list_of,
    number,
    optional,
)
from ipex_lookahead.architectures.keys import LAYER_THETA, LOCAL_THETA, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.routing import SIGMOID
from ipex_lookahead.architectures.spec import Experts, FeedForward
from ipex_lookahead.architectures.windows import (
    fill_layer_types,
    gguf_layer_types,
    no_window,
    one_kind_of_layer,
    window_of,
)
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

_TRAINING = {
    "output_router_logits": "additional outputs",
    "router_aux_loss_coef": "training only",
}
_DENSE, _SPARSE = "dense", "sparse"
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
        renormalize=config.get("norm_topk_prob", True),
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


def check_qwen3(config: Config, source: Source, default: int = 128) -> None:
    """Check Qwen3's experts, ``default`` being transformers' number of them, and its windows."""
    check_experts(config, source, "num_experts", default=default)
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


def complete_qwen3(file: GgufSource, config: Config) -> None:
    """Fill in the size of an expert; of files of Qwen3's mixtures, with and without vision."""
    _complete(file, config, file.scalar("general.architecture"))


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


def _check_mellum(config: Config, source: Source) -> None:
    check_experts(config, source, "num_experts", default=64)
    fill_layer_types(config, source, lambda layer: False)
    if config["mlp_layer_types"] is None:
        config["mlp_layer_types"] = [_SPARSE] * config["num_hidden_layers"]
    check_one_per_layer(config, source, "mlp_layer_types")


def _complete_mellum(file: GgufSource, config: Config) -> None:
    _complete(file, config, "mellum")
    config.setdefault("sliding_window", None)
    config.setdefault(LOCAL_THETA, config["rope_theta"])
    gguf_layer_types(file, config, "mellum", every=4)


def _check_afmoe(config: Config, source: Source) -> None:
    check_experts(config, source, "num_experts", default=64)
    every = config.pop("global_attn_every_n_layers")
    fill_layer_types(config, source, lambda layer: (layer + 1) % every != 0)
    config["embedding_multiplier"] = config["hidden_size"] ** 0.5 if config["mup_enabled"] else 1.0


def _complete_afmoe(file: GgufSource, config: Config) -> None:
    _complete(file, config, "afmoe")
    rules.one_base(file, config, "afmoe", "a Trinity has one base")
    for key, value in (("sliding_window", None), ("num_dense_layers", 0)):
        config.setdefault(key, value)
    gguf_layer_types(file, config, "afmoe", every=4)


def _afmoe(names: Names, layer: int) -> FeedForward:
    config, count = names.config, names.config["num_experts"]
    if layer < config["num_dense_layers"]:
        return names.gated_mlp(layer)
    shared = config["moe_intermediate_size"] * config["num_shared_experts"]
    return _mixture(
        names,
        layer,
        router="router.gate",
        scores="sigmoid",
        sum_epsilon=1e-20,
        scale=config["route_scale"],
        correction=names.tensor(f"model.layers.{layer}.mlp.expert_bias", f"blk.{layer}.exp_probs_b.bias", (count,)),
        shared=names.shared_expert(layer, "mlp.shared_experts", shared) if shared else None,
    )


def _check_granite(config: Config, source: Source) -> None:
    check_even_heads(config, source)
    check_experts(config, source, "num_local_experts", default=8)


def _check_granite_swa(config: Config, source: Source) -> None:
    _check_granite(config, source)
    granite.check_swa(config, source)


def _complete_granite(file: GgufSource, config: Config) -> None:
    need_counts(file, "granitemoe")
    rules.attention_bias(file, config)
    config.setdefault("attention_multiplier", config["head_dim"] ** -0.5)


def _complete_granite_swa(file: GgufSource, config: Config) -> None:
    need_counts(file, "granite_swa")
    granite.complete_swa(file, config)


_GRANITE_MOE = keys(
    "hidden_act tie_word_embeddings attention_bias num_local_experts num_experts num_experts_per_tok",
    {"num_experts_per_tok": 2, **dict.fromkeys(GRANITE, 1.0)},
    dict.fromkeys(GRANITE, number(1e-6, 1e6)),
    neutral=_TRAINING,
    refused=no_window("Granite"),
    check=_check_granite,
)
_GRANITE_MOE_GGUF = {
    **GRANITE, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
}  # fmt: skip
_GRANITE_SHARED = replace(
    _GRANITE_MOE,
    used={**_GRANITE_MOE.used, "shared_intermediate_size": integer(0, 1 << 22)},
    defaults={**_GRANITE_MOE.defaults, "shared_intermediate_size": 0},
)
_GRANITE_SHARED_GGUF = {**_GRANITE_MOE_GGUF, "shared_intermediate_size": "expert_shared_feed_forward_length"}


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
            neutral=_TRAINING, refused=one_kind_of_layer("Qwen3-MoE"), check=check_qwen3,
        ),
        GgufKeys(
            "qwen3moe", "Qwen3MoeForCausalLM", used=_GGUF_SIZES,
            constants={**_ALL_SPARSE, "norm_topk_prob": True, "attention_bias": False},
            complete=complete_qwen3,
        ),
        qk_norm="heads", feed_forward=_qwen3,
    ),
    "mellum": Dense(
        "Mellum 2 12B-A2.5B (JetBrains): Qwen3's mixture with a window in most layers, which have a rope of their own.",
        keys(
            "hidden_act tie_word_embeddings attention_bias sliding_window layer_types num_experts num_local_experts"
            " num_experts_per_tok",
            {
                "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 500000.0,
                LOCAL_THETA: 10000.0, "sliding_window": 1024, "num_experts_per_tok": 8, "moe_intermediate_size": 896,
                "norm_topk_prob": True, "mlp_layer_types": None,
            },
            {
                "moe_intermediate_size": SIZES["intermediate_size"], "norm_topk_prob": boolean,
                "mlp_layer_types": list_of(_DENSE, _SPARSE), LOCAL_THETA: SIZES["rope_theta"],
            },
            neutral={
                **_TRAINING,
                **dict.fromkeys(
                    ("num_mtp_layers", "num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types"),
                    "a block for drafting, which is not read",
                ),
            },
            nullable=("sliding_window", "mlp_layer_types"), check=_check_mellum,
        ),
        GgufKeys(
            "mellum", "MellumForCausalLM", used={**_GGUF_SIZES, **GGUF_WINDOWS},
            constants={"norm_topk_prob": True, "attention_bias": False}, complete=_complete_mellum,
        ),
        qk_norm="heads", unread=("mtp.",), feed_forward=lambda names, layer: (
            _mixture(names, layer)
            if names.config["mlp_layer_types"][layer] == _SPARSE
            else names.gated_mlp(layer)
        ),
    ),
    "afmoe": Dense(
        "Trinity Nano, Mini and Large (Arcee): gated attention, rope only in layers with a window, a sigmoid router.",
        keys(
            "hidden_act tie_word_embeddings attention_bias sliding_window layer_types num_experts num_local_experts"
            " num_experts_per_tok",
            {
                "head_dim": 128, "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "moe_intermediate_size": 1408,
                "num_dense_layers": 1, "num_experts_per_tok": 6, "num_shared_experts": 2, "route_scale": 1.0,
                "global_attn_every_n_layers": 4, "sliding_window": 1024, "mup_enabled": False,
            },
            {
                "moe_intermediate_size": SIZES["intermediate_size"], "num_dense_layers": integer(0, MAX_LAYERS),
                "num_shared_experts": integer(0, 64), "route_scale": number(1e-6, 1e6),
                "global_attn_every_n_layers": integer(1, MAX_LAYERS), "mup_enabled": boolean,
            },
            neutral={**_TRAINING, "load_balance_coeff": "training only", "use_grouped_mm": "how, not what"},
            refused={
                "route_norm": Refusal("keeps the sum of the experts' weights", unless=(None, True)),
                "score_func": Refusal("selects another router", unless=(None, "sigmoid")),
                **dict.fromkeys(
                    ("n_group", "topk_group", "num_expert_groups", "num_limited_groups"),
                    Refusal("selects experts by group, which transformers' AFMoE does not do", unless=(None, 1)),
                ),
            },
            check=_check_afmoe,
        ),
        GgufKeys(
            "afmoe", "AfmoeForCausalLM",
            used={
                **_GGUF_SIZES, **GGUF_WINDOWS, "num_dense_layers": "leading_dense_block_count",
                "num_shared_experts": "expert_shared_count", "route_scale": "expert_weights_scale",
            },
            constants={"attention_bias": False, "mup_enabled": True},  # llama.cpp multiplies embeddings in every model
            refused={
                "expert_weights_norm": Refusal(unless=(1,)), "expert_gating_func": Refusal(unless=(0, SIGMOID)),
                "expert_group_count": Refusal(unless=(0, 1)), "expert_group_used_count": Refusal(unless=(0, 1)),
            },
            complete=_complete_afmoe,
        ),
        norms={
            **PRE, **POST, "feed_forward_norm": ("pre_mlp_layernorm", "ffn_norm"),
            "feed_forward_after": ("post_mlp_layernorm", "post_ffw_norm"),
        },
        qk_norm="heads", gated=True, has_rope=lambda config, layer: window_of(config, layer) is not None,
        feed_forward=_afmoe,
    ),
    "granitemoe": Dense(
        "Granite 3 with experts (1B-A400M, 3B-A800M): a Granite with a mixture in every layer.",
        _GRANITE_MOE,
        GgufKeys(
            "granitemoe", "GraniteMoeForCausalLM", used=_GRANITE_MOE_GGUF, complete=_complete_granite,
            neutral={"expert_shared_feed_forward_length": "0 in files of this family"},
            claims=lambda file: not file.scalar("granitemoe.expert_shared_feed_forward_length", 0),
        ),
        pairs=True, scale=lambda config: config["attention_multiplier"], feed_forward=granite.mixture,
    ),
    "granitemoeshared": Dense(
        "Granite with experts and an MLP for all rows: a `granitemoe` with a shared expert.",
        _GRANITE_SHARED,
        GgufKeys(
            "granitemoe", "GraniteMoeSharedForCausalLM", used=_GRANITE_SHARED_GGUF, complete=_complete_granite,
            claims=lambda file: bool(file.scalar("granitemoe.expert_shared_feed_forward_length", 0)),
        ),
        pairs=True, scale=lambda config: config["attention_multiplier"], feed_forward=granite.moe_shared,
    ),
    "granitemoe_swa": Dense(
        "Granite with windows and experts (granite-swash 3B-A600M): a `granite_swa` with a mixture.",
        replace(
            _GRANITE_SHARED,
            used={
                **_GRANITE_SHARED.used, **common_keys("sliding_window layer_types"),
                LAYER_THETA: granite.layer_theta,
            },
            defaults={**_GRANITE_SHARED.defaults, "sliding_window": 128}, nullable=("sliding_window",),
            refused={}, check=_check_granite_swa,
        ),
        GgufKeys(
            "granite_swa", "GraniteMoeSWAForCausalLM", used={**_GRANITE_SHARED_GGUF, **WINDOWS},
            refused={"deepstack_mapping": Refusal()},
            neutral={"attention.rope_pattern": "the layers with rope; read separately"},
            complete=_complete_granite_swa,
            claims=lambda file: file.scalar("granite_swa.expert_count", 0) != 0,
        ),
        pairs=True, scale=lambda config: config["attention_multiplier"], sinks=True, feed_forward=granite.moe_swa,
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
