"""ERNIE 4.5 21B-A3B and 300B-A47B (Baidu): a Llama with interleaved rope, and after the first layers a mixture.

The router's choice is corrected by a bias on the shares of a softmax over all experts. Shared experts are one MLP.
Weights of chosen experts are divided by max(sum, moe_norm_min) in transformers and by sum + moe_norm_min here, which is
equal in float32 for sums from 2^24 moe_norm_min. The check keeps it far below any sum of choices.
"""

from __future__ import annotations

from ipex_lookahead.architectures import routing
from ipex_lookahead.architectures.dense import Config, Dense, keys
from ipex_lookahead.architectures.experts import check_total, count, need_counts
from ipex_lookahead.architectures.hparams import MAX_LAYERS, SIZES, Source, integer, number
from ipex_lookahead.architectures.keys import GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import FeedForward, Place, Tensor
from ipex_lookahead.architectures.windows import no_window
from ipex_lookahead.files.refusal import Refusal


def _check(config: Config, source: Source) -> None:
    routing.one_name(config, source, "moe_num_experts", ("num_experts",))
    routing.one_name(config, source, "moe_k", ("num_experts_per_tok",))
    experts, layers = config.setdefault("moe_num_experts", 64), config["num_hidden_layers"]
    check_total(source, "moe_num_experts", experts, layers)
    if config.setdefault("moe_k", 6) > experts:
        raise source.error("moe_k", f"is {config['moe_k']}; there are {experts} experts")
    if config["moe_layer_end_index"] == -1:
        config["moe_layer_end_index"] = layers - 1


def _complete(file: GgufSource, config: Config) -> None:
    """Read from the tensors what keys omit: the last mixture, and the size of the shared expert."""
    need_counts(file, "ernie4_5-moe")
    mixtures = [i for i in range(config["num_hidden_layers"]) if f"blk.{i}.ffn_gate_inp.weight" in file.tensors]
    if not mixtures:
        raise file.error("blk.*.ffn_gate_inp.weight", None, "is missing: the file has experts in no layer")
    config["moe_layer_end_index"] = mixtures[-1]
    shared, inner = file.tensors.get(f"blk.{mixtures[0]}.ffn_gate_shexp.weight"), config["moe_intermediate_size"]
    if shared is not None and shared.shape[0] % inner:
        problem = f"has {shared.shape[0]} rows, which are not a multiple of the experts' size {inner}"
        raise file.error(f"blk.{mixtures[0]}.ffn_gate_shexp.weight", None, problem)
    config["moe_num_shared_experts"] = 0 if shared is None else shared.shape[0] // inner


def _feed_forward(names: Names, layer: int) -> FeedForward:
    config, first, last = names.config, names.config["moe_layer_start_index"], names.config["moe_layer_end_index"]
    if not first <= layer <= last or (layer + 1) % config["moe_layer_interval"]:
        return names.gated_mlp(layer)
    experts, inner = config["moe_num_experts"], config["moe_intermediate_size"]
    shared = config["moe_num_shared_experts"] * inner
    name, file = (f"model.layers.{layer}.mlp.{one}.e_score_correction_bias" for one in ("gate", "moe_statics"))
    return names.experts(
        layer,
        "mlp",
        ("gate_proj", "up_proj", "down_proj"),
        count=experts,
        used=config["moe_k"],
        inner=inner,
        sum_epsilon=config["moe_norm_min"],
        correction=Tensor(
            name, (experts,), Place(file, (1, experts)), Place(f"blk.{layer}.exp_probs_b.bias", (1, experts))
        ),
        shared=names.shared_expert(layer, "mlp.shared_experts", shared) if shared else None,
    )


# fmt: off
_ROW = Dense(
    "see the module",
    keys(
        "hidden_act tie_word_embeddings num_experts num_experts_per_tok",
        {
            "num_key_value_heads": 4, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "tie_word_embeddings": True, "moe_intermediate_size": 1536,
            "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1,
            "moe_layer_interval": 1, "moe_norm_min": 1e-12,
        },
        {
            "moe_num_experts": count, "moe_k": count, "moe_intermediate_size": SIZES["intermediate_size"],
            "moe_num_shared_experts": integer(0, 64), "moe_layer_start_index": integer(0, MAX_LAYERS),
            "moe_layer_end_index": integer(-1, MAX_LAYERS), "moe_layer_interval": integer(1, MAX_LAYERS),
            "moe_norm_min": number(0, 1e-9),
        },
        neutral={"output_router_logits": "additional outputs", "router_aux_loss_coef": "training only"}, check=_check,
        refused={
            **no_window("ERNIE 4.5"),
            "use_bias": Refusal("adds biases to all projections, unlike any published model", unless=(None, False)),
        },
    ),
    GgufKeys(
        "ernie4_5-moe", "Ernie4_5_MoeForCausalLM",
        used={
            "moe_num_experts": "expert_count", "moe_k": "expert_used_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "moe_layer_start_index": "leading_dense_block_count",
            "moe_layer_interval": "interleave_moe_layer_step",
        },
        refused={"rope.dimension_sections": Refusal()},
        neutral={
            "expert_shared_count": "the tensors have the size",
            "expert_shared_feed_forward_length": "the tensors have the size; converters write another number",
        },
        complete=_complete,
    ),
    interleaved=True, feed_forward=_feed_forward, read_past=("model.mtp_",),
)
# fmt: on
KEYS, GGUF, spec = _ROW.KEYS, _ROW.GGUF, _ROW.spec
"""See ``Family``."""
