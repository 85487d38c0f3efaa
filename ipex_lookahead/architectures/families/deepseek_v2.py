"""DeepSeek-V2, V2.5, Coder-V2 and their Lite models: latent attention and a softmax router, optionally with groups."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import latent, routing
from ipex_lookahead.architectures.families import deepseek_v3
from ipex_lookahead.architectures.hparams import Source, one_of
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.files.refusal import Refusal

GREEDY, LIMITED = "greedy", "group_limited_greedy"


def _check(config: dict[str, Any], source: Source) -> None:
    for key in ("n_group", "topk_group"):  # greedy selection ignores groups
        if config["topk_method"] == GREEDY or config[key] is None:
            config[key] = 1
    latent.check(config, source)
    routing.check(config, source, default=64)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    deepseek_v3.complete(file, config)
    del config["norm_topk_prob"]  # not a key of this family
    config["topk_method"] = LIMITED if config["n_group"] > 1 else GREEDY


KEYS = ConfigKeys(
    used={
        **common_keys("hidden_act tie_word_embeddings attention_bias"),
        "topk_method": one_of(GREEDY, LIMITED),
        "scoring_func": one_of("softmax"),
        **latent.KEYS,
        **{key: one for key, one in routing.KEYS.items() if key not in ("norm_topk_prob", "num_mtp_layers")},
    },
    defaults={
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "topk_method": GREEDY,
        "scoring_func": "softmax", **latent.DEFAULTS, "q_lora_rank": 1536, "num_experts_per_tok": 6,
        "n_shared_experts": 2, "moe_intermediate_size": 1407, "routed_scaling_factor": 1.0, "n_group": None,
        "topk_group": None, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0,
    },
    nullable=("q_lora_rank", "n_group", "topk_group"),
    neutral=deepseek_v3.NEUTRAL,
    refused={
        **deepseek_v3.REFUSED,
        "mlp_bias": Refusal("adds biases to MLPs and shared experts", unless=(None, False)),
        "norm_topk_prob": Refusal(
            "normalizes the experts' weights, which transformers' DeepSeek-V2 does not do", unless=(None, False)
        ),
    },
    check=_check,
)  # fmt: skip
GGUF = GgufKeys(
    "deepseek2",
    "DeepseekV2ForCausalLM",
    used={
        **latent.GGUF_USED,
        **{key: name for key, name in routing.GGUF_USED.items() if key != "norm_topk_prob"},
    },
    neutral=deepseek_v3.GGUF_NEUTRAL,
    refused={"expert_weights_norm": Refusal(unless=(0,))},
    claims=lambda file: not deepseek_v3.sigmoids(file),
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a deepseek_v2 ``config``."""
    names, turn = Names({**config, "norm_topk_prob": False}), latent.latent_rope(config)

    def block(i: int) -> Block:
        dense = i < config["first_k_dense_replace"]
        feed_forward = routing.feed_forward(names, i, dense=dense, group_best=1)
        return names.block(i, latent.latent_attention(names, i, turn), feed_forward)

    return names.model(block, read_past=routing.read_past(config))
