"""Ling and Ring 2.0 (inclusionAI): partial rotary embedding, and after the first layers a mixture with grouped experts.

transformers has no such family; the formulas are those of the published models. The router uses sigmoid, a correction
of the choice, and the experts of the groups with the best sums of two. Shared experts are one MLP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.experts import check_total, count, need_counts
from ipex_lookahead.architectures.hparams import MAX_LAYERS, SIZES, Source, boolean, integer, number, one_of
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.routing import MAX_DRAFTING
from ipex_lookahead.architectures.spec import Attention, Block, Experts, Linear, ModelSpec, Place
from ipex_lookahead.files.refusal import Refusal

_SUM_EPSILON = 1e-20


def _check(config: dict[str, Any], source: Source) -> None:
    experts, used, groups = config["num_experts"], config["num_experts_per_tok"], config["n_group"]
    check_total(source, "num_experts", experts, config["num_hidden_layers"])
    if experts % groups:
        raise source.error("n_group", f"is {groups}, which does not divide {experts} experts")
    if config["topk_group"] > groups:
        raise source.error("topk_group", f"is {config['topk_group']}, more than the {groups} groups")
    if used > experts // groups * config["topk_group"]:
        raise source.error("num_experts_per_tok", f"is {used}, more than the experts that can be selected")


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Exclude blocks for drafting, and read from the tensors what keys say in several ways."""
    need_counts(file, "bailingmoe2")
    past = config.setdefault("num_nextn_predict_layers", 0)
    if past >= config["num_hidden_layers"]:
        key = "bailingmoe2.nextn_predict_layers"
        raise file.error(key, file.offsets[key], f"is {past}; there are {config['num_hidden_layers']} blocks in total")
    config["num_hidden_layers"] -= past
    first, inner = config.setdefault("first_k_dense_replace", 0), config["moe_intermediate_size"]
    config["moe_router_enable_expert_bias"] = f"blk.{first}.exp_probs_b.bias" in file.tensors
    shared = file.tensors.get(f"blk.{first}.ffn_gate_shexp.weight")
    if shared is not None and shared.shape[0] % inner:
        problem = f"has {shared.shape[0]} rows, which are not a multiple of the experts' size {inner}"
        raise file.error(f"blk.{first}.ffn_gate_shexp.weight", None, problem)
    config["num_shared_experts"] = 0 if shared is None else shared.shape[0] // inner
    for key in ("n_group", "topk_group"):
        config[key] = max(1, config.get(key, 1))
    config.setdefault("routed_scaling_factor", 1.0)


KEYS = ConfigKeys(
    used={
        **common_keys("hidden_act tie_word_embeddings num_experts num_experts_per_tok"),
        "partial_rotary_factor": number(0, 1, above=True),
        "use_qk_norm": boolean,
        "score_function": one_of("sigmoid"),
        "moe_intermediate_size": SIZES["intermediate_size"],
        "num_shared_experts": integer(0, 64),
        "n_group": count,
        "topk_group": count,
        "routed_scaling_factor": number(1e-6, 1e6),
        "first_k_dense_replace": integer(0, MAX_LAYERS),
        "moe_router_enable_expert_bias": boolean,
        "num_nextn_predict_layers": integer(0, MAX_DRAFTING),
    },
    defaults={
        "vocab_size": 157184, "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 20,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "rope_theta": 600000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "partial_rotary_factor": 0.5, "use_qk_norm": True, "score_function": "sigmoid", "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "num_shared_experts": 1, "n_group": 8, "topk_group": 4,
        "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "moe_router_enable_expert_bias": True,
        "num_nextn_predict_layers": 0,
    },
    neutral={
        "auto_map": "remote code, which is never executed",
        "embedding_dropout": "zero outside training",
        "max_window_layers": "for windows, which use_sliding_window enables",
        "moe_shared_expert_intermediate_size": "the published models multiply the experts' size by their number",
        "mtp_loss_scaling_factor": "training only",
        "output_dropout": "zero outside training",
        "output_router_logits": "additional outputs",
        "pretraining_tp": "the parallelism of training",
        "router_dtype": "always float32 here",
        "seq_aux": "training only",
        "sliding_window": "for windows, which use_sliding_window enables",
    },
    refused={
        "attention_bias": Refusal("adds biases to attention", unless=(None, False)),
        "layer_types": Refusal("selects layers of several kinds", unless=(None,)),
        "mlp_bias": Refusal("adds biases to MLPs", unless=(None, False)),
        "norm_head": Refusal("normalizes the lm_head's columns", unless=(None, False)),
        "norm_topk_prob": Refusal("keeps the sum of the experts' weights", unless=(None, True)),
        "use_bias": Refusal("adds biases to projections", unless=(None, False)),
        "use_qkv_bias": Refusal("adds biases to q, k and v", unless=(None, False)),
        "use_rmsnorm": Refusal("selects layer norms", unless=(None, True)),
        "use_sliding_window": Refusal("limits the attention window", unless=(None, False)),
    },
    check=_check,
)  # fmt: skip
GGUF = GgufKeys(
    "bailingmoe2",
    "BailingMoeV2ForCausalLM",
    used={
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "routed_scaling_factor": "expert_weights_scale",
        "first_k_dense_replace": "leading_dense_block_count",
        "num_nextn_predict_layers": "nextn_predict_layers",
    },
    constants={"use_qk_norm": True, "score_function": "sigmoid"},
    neutral={
        "expert_shared_count": "the tensors have the size",
        "expert_shared_feed_forward_length": "the tensors have the size",
    },
    refused={"expert_gating_func": Refusal(unless=(2,)), "expert_weights_norm": Refusal(unless=(1,))},
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a bailing_moe_v2 ``config``."""
    names, turn = Names(config), rope(config)
    hidden, d = names.hidden, names.head_dim
    q, kv = names.heads * d, names.kv_heads * d

    def rows(i: int, x: str, first: int, n: int) -> Linear:
        of = ((q + 2 * kv, hidden), None, (first, 1))
        hf, gguf = Place("attention.query_key_value", *of), Place("attn_qkv", *of)
        return names.part(i, f"attention.{x}_proj", hf, gguf, (n, hidden))

    def attention(i: int) -> Attention:
        norms: dict[str, Any] = {}
        if config["use_qk_norm"]:
            for x, name in (("q", "query"), ("k", "key")):
                norms[f"{x}_norm"] = names.norm(i, f"attention.{name}_layernorm", f"attn_{x}_norm", d)
        return Attention(
            heads=names.heads,
            kv_heads=names.kv_heads,
            head_dim=d,
            scale=d**-0.5,
            rope=turn,
            q=rows(i, "q", 0, q),
            k=rows(i, "k", q, kv),
            v=rows(i, "v", q + kv, kv),
            o=names.linear(i, "attention.dense", "attn_output", hidden, q),
            **norms,
        )

    def mixture(i: int) -> Experts:
        experts, inner = config["num_experts"], config["moe_intermediate_size"]
        shared = config["num_shared_experts"] * inner
        has_bias = config["moe_router_enable_expert_bias"]
        return names.experts(
            i,
            "mlp",
            ("gate_proj", "up_proj", "down_proj"),
            count=experts,
            used=config["num_experts_per_tok"],
            inner=inner,
            renormalize=config["num_experts_per_tok"] > 1,
            scores="sigmoid",
            sum_epsilon=_SUM_EPSILON,
            scale=config["routed_scaling_factor"],
            groups=config["n_group"],
            groups_used=config["topk_group"],
            correction=names.vector(i, "mlp.gate.expert_bias", "exp_probs_b.bias", experts) if has_bias else None,
            shared=names.shared_expert(i, "mlp.shared_experts", shared) if shared else None,
        )

    def block(i: int) -> Block:
        dense = i < config["first_k_dense_replace"]
        return names.block(i, attention(i), names.gated_mlp(i) if dense else mixture(i))

    table, first = (config["vocab_size"], hidden), config["num_hidden_layers"]
    embedding = names.tensor("model.embed_tokens.weight", "token_embd.weight", table)
    past = range(first, first + config["num_nextn_predict_layers"])
    return names.model(
        block,
        embedding=replace(embedding, hf=Place("model.word_embeddings.weight", table)),
        read_past=tuple(name for i in past for name in (f"model.layers.{i}.", f"blk.{i}.")),
    )
