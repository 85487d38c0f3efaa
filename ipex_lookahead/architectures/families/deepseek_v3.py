"""DeepSeek-V3, R1, V3.1, Kimi-K2 and what follows them: latent attention, and a sigmoid router that limits groups.

GGUF files of the architecture ``deepseek2`` are of this family where their router has sigmoids, GLM-4.7-Flash's too.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import latent, routing
from ipex_lookahead.architectures.experts import need_counts
from ipex_lookahead.architectures.hparams import Source, boolean, one_of
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.mtp import behind
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.architectures.windows import one_kind_of_layer
from ipex_lookahead.files.refusal import Refusal

_FLASH_VOCAB = 154880
"""Of GLM-4.7-Flash, whose first GGUF files do not name the router's function."""


def _check(config: dict[str, Any], source: Source) -> None:
    latent.check(config, source)
    routing.check(config, source, usual=256)


def sigmoids(file: GgufSource) -> bool:
    """Whether a GGUF file's router has sigmoids, not softmax."""
    function = file.scalar("deepseek2.expert_gating_func", 0)
    if function == 0:
        return bool(file.scalar("deepseek2.vocab_size", 0) == _FLASH_VOCAB)
    return bool(function == routing.SIGMOID)


def complete(file: GgufSource, config: dict[str, Any]) -> None:
    """What both attention and the mixtures leave out."""
    need_counts(file, "deepseek2")
    latent.complete(file, config)
    routing.complete(file, config)


NEUTRAL = {
    "aux_loss_alpha": "training only",
    "ep_size": "where weights lie, not what they are",
    "output_router_logits": "what is returned beside the logits",
    "pretraining_tp": "how training was divided",
    "qk_head_dim": "qk_nope_head_dim and qk_rope_head_dim together",
    "seq_aux": "training only",
}
REFUSED = {
    **one_kind_of_layer("models with latents"),
    "moe_layer_freq": Refusal("has dense layers between the mixtures", unless=(1,)),
}
GGUF_NEUTRAL = {
    "attention.key_length_mla": "read with attention.kv_lora_rank",
    "attention.temperature_length": "only a temperature looks at it",
    "attention.value_length_mla": "read with attention.kv_lora_rank",
    "expert_gating_func": "which of the two families of the architecture it is",
}
KEYS = ConfigKeys(
    used={
        **usual("hidden_act tie_word_embeddings attention_bias"),
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
    """The decoder that a deepseek_v3 ``config`` describes."""
    names, turn = Names(config), latent.latent_rope(config)

    def block(i: int) -> Block:
        feed_forward = routing.by_sigmoid(names, i, dense=i < config["first_k_dense_replace"])
        return names.block(i, latent.latent_attention(names, i, turn), feed_forward)

    model = names.model(block, read_past=routing.read_past(config))
    return behind(model, names, block, config["num_nextn_predict_layers"])
