"""DeepSeek-V3, R1, V3.1, Kimi-K2 and successors: latent attention and a sigmoid router with limited groups.

GGUF files with architecture ``deepseek2`` belong to this family if their router uses sigmoid, including GLM-4.7-Flash.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import latent, routing
from ipex_lookahead.architectures.experts import need_counts
from ipex_lookahead.architectures.hparams import Source, boolean, one_of
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.mtp import with_mtp_block
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.architectures.windows import one_kind_of_layer
from ipex_lookahead.files.refusal import Refusal

_FLASH_VOCAB = 154880
"""Vocabulary size of GLM-4.7-Flash; its first GGUF files lack the router's function."""


def _check(config: dict[str, Any], source: Source) -> None:
    latent.check(config, source)
    routing.check(config, source, default=256)


def sigmoids(file: GgufSource) -> bool:
    """Return True if a GGUF file's router uses sigmoid instead of softmax."""
    function = file.scalar("deepseek2.expert_gating_func", 0)
    if function == 0:
        return bool(file.scalar("deepseek2.vocab_size", 0) == _FLASH_VOCAB)
    return bool(function == routing.SIGMOID)


def complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Fill in what attention and mixtures derive."""
    need_counts(file, "deepseek2")
    latent.complete(file, config)
    routing.complete(file, config)


NEUTRAL = {
    "aux_loss_alpha": "training only",
    "ep_size": "the placement of weights",
    "output_router_logits": "additional outputs",
    "pretraining_tp": "the parallelism of training",
    "qk_head_dim": "the sum of qk_nope_head_dim and qk_rope_head_dim",
    "seq_aux": "training only",
}
REFUSED = {
    **one_kind_of_layer("models with latents"),
    "moe_layer_freq": Refusal("adds dense layers between the mixtures", unless=(1,)),
}
GGUF_NEUTRAL = {
    "attention.key_length_mla": "read with attention.kv_lora_rank",
    "attention.temperature_length": "used with a temperature only",
    "attention.value_length_mla": "read with attention.kv_lora_rank",
    "expert_gating_func": "selects one of the two families of the architecture",
}
KEYS = ConfigKeys(
    used={
        **common_keys("hidden_act tie_word_embeddings attention_bias"),
        "rope_interleave": boolean,
        "topk_method": one_of("noaux_tc"),
        "scoring_func": one_of("sigmoid"),
        **latent.KEYS,
        **routing.KEYS,
    },
    defaults={
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "rope_interleave": True, "topk_method": "noaux_tc", "scoring_func": "sigmoid", **latent.DEFAULTS,
        "q_lora_rank": 1536, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
    },
    nullable=("q_lora_rank",),
    neutral=NEUTRAL,
    refused=REFUSED,
    check=_check,
)  # fmt: skip
GGUF = GgufKeys(
    "deepseek2",
    "DeepseekV3ForCausalLM",
    used={**latent.GGUF_USED, **routing.GGUF_USED},
    neutral=GGUF_NEUTRAL,
    claims=sigmoids,
    complete=complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a deepseek_v3 ``config``."""
    names, turn = Names(config), latent.latent_rope(config)

    def block(i: int) -> Block:
        feed_forward = routing.by_sigmoid(names, i, dense=i < config["first_k_dense_replace"])
        return names.block(i, latent.latent_attention(names, i, turn), feed_forward)

    model = names.model(block, read_past=routing.read_past(config))
    return with_mtp_block(model, names, block, config["num_nextn_predict_layers"])
