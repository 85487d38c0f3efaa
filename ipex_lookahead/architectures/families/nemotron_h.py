"""Nemotron-H and Nemotron 3 (Nano, Super, Ultra): one operation per layer, according to a pattern.

The operations are Mamba-2, attention without rope, an MLP of squared ReLU without gate, and a mixture of such MLPs with
a sigmoid router and a shared expert. With ``moe_latent_size`` the experts process a projection of the rows.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.experts import check_total, count, need_counts
from ipex_lookahead.architectures.hparams import (
    MAX_LAYERS,
    SIZES,
    Source,
    boolean,
    integer,
    number,
    one_of,
    optional,
    shown,
)
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.mamba import MAX_HEADS, MAX_KERNEL, MAX_STATE, mamba2, no_limit, of_words
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.routing import MAX_DRAFTING
from ipex_lookahead.architectures.spec import (
    Activation,
    Attention,
    Block,
    Experts,
    GatedMlp,
    Linear,
    ModelSpec,
    Norm,
    Place,
    Tensor,
)
from ipex_lookahead.files.refusal import Refusal

MAMBA, FULL, MLP, MOE = "mamba", "attention", "mlp", "moe"
RELU_SQUARED = Activation("relu_squared")
_PATTERN = {"M": MAMBA, "*": FULL, "-": MLP, "E": MOE}
layer_types = of_words(
    ("linear_attention", MAMBA), ("full_attention", FULL), (MAMBA, MAMBA), (FULL, FULL), (MLP, MLP), (MOE, MOE)
)


def _pattern(source: Source, key: str, value: Any) -> list[str]:
    """Check for a pattern of layers as a string of letters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_LAYERS or {*value} - {*_PATTERN}:
        raise source.error(key, f"is {shown(value)}; it must be a string of the letters {', '.join(_PATTERN)}")
    return [_PATTERN[one] for one in value]


_ALIASES = {
    "layer_types": "layers_block_type", "num_local_experts": "n_routed_experts", "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel", "mamba_dt_min": "time_step_min", "mamba_dt_limit": "time_step_limit",
    "mamba_conv_bias": "use_conv_bias",
}  # fmt: skip
"""Alternative names of keys, which take precedence."""


def _check(config: dict[str, Any], source: Source) -> None:
    for other, key in _ALIASES.items():
        if (value := config.pop(other, None)) is not None:
            config[key] = value
    pattern = config.pop("hybrid_override_pattern", None)
    types = config["layers_block_type"] or pattern or [MAMBA, MOE, FULL, MLP]
    config["layers_block_type"], config["num_hidden_layers"] = types, len(types)
    config["rms_norm_eps"] = config["layer_norm_epsilon"]
    heads, groups = config["mamba_num_heads"], config["n_groups"]
    if heads % groups:
        raise source.error("n_groups", f"is {groups}, which does not divide {heads} heads")
    experts, used = config["n_routed_experts"], config["num_experts_per_tok"]
    if MOE not in types:
        return
    check_total(source, "n_routed_experts", experts, types.count(MOE))
    if experts % config["n_group"] or config["topk_group"] > config["n_group"]:
        raise source.error(
            "n_group", f"is {config['n_group']}, with topk_group {config['topk_group']} and {experts} experts"
        )
    if used > experts // config["n_group"] * config["topk_group"]:
        raise source.error("num_experts_per_tok", f"is {used}, more than the experts that can be selected")


_USED = {
    "layers_block_type": layer_types,
    "hybrid_override_pattern": _pattern,
    "layer_norm_epsilon": number(1e-30, 1),
    "tie_word_embeddings": boolean,
    "mlp_bias": boolean,
    "use_bias": boolean,
    "use_conv_bias": boolean,
    "mlp_hidden_act": one_of("relu2"),
    "mamba_hidden_act": one_of("silu"),
    "mamba_num_heads": integer(1, MAX_HEADS),
    "mamba_head_dim": integer(1, MAX_STATE),
    "n_groups": integer(1, MAX_HEADS),
    "ssm_state_size": integer(1, MAX_STATE),
    "conv_kernel": integer(1, MAX_KERNEL),
    "time_step_min": number(0, 1e6),
    "time_step_limit": no_limit,
    "n_routed_experts": count,
    "num_experts_per_tok": count,
    "moe_intermediate_size": SIZES["intermediate_size"],
    "moe_latent_size": optional(SIZES["hidden_size"]),
    "moe_shared_expert_intermediate_size": SIZES["intermediate_size"],
    "routed_scaling_factor": number(1e-6, 1e6),
    "n_group": count,
    "topk_group": count,
    "norm_topk_prob": boolean,
    "num_nextn_predict_layers": integer(0, MAX_DRAFTING),
}
KEYS = ConfigKeys(
    used={**_USED, **{other: _USED[key] for other, key in _ALIASES.items()}},
    defaults={
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 4,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "layer_norm_epsilon": 1e-5, "layers_block_type": None,
        "tie_word_embeddings": False, "mlp_bias": False, "use_bias": False, "use_conv_bias": True,
        "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "mamba_num_heads": 128, "mamba_head_dim": 64,
        "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "time_step_min": 0.001, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
        "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "moe_latent_size": None, "num_nextn_predict_layers": 0,
    },
    nullable=("moe_latent_size",),
    neutral={
        "chunk_size": "the chunk size of prefill in other programs",
        "expand": "the heads of recurrent layers determine the size",
        "hidden_dropout": "zero outside training",
        "mamba_chunk_size": "the chunk size of prefill in other programs",
        "mamba_dt_init_floor": "initialization of missing weights",
        "mamba_dt_max": "initialization of missing weights",
        "mamba_expand": "the heads of recurrent layers determine the size",
        "mamba_proj_bias": "use_bias is used instead",
        "mamba_ssm_cache_dtype": "the dtype of states, which is float32 here",
        "moe_shared_expert_overlap": "the order of computation, not what is computed",
        "mtp_hybrid_override_pattern": "for MTP blocks",
        "mtp_layers_block_type": "for MTP blocks",
        "n_shared_experts": "always one, with a key of its own for the size",
        "num_logits_to_keep": "the positions for which other programs compute logits",
        "output_router_logits": "additional outputs",
        "rescale_prenorm_residual": "initialization of missing weights",
        "residual_in_fp32": "always float32 here",
        "time_step_floor": "initialization of missing weights",
        "time_step_max": "initialization of missing weights",
        "use_mamba_kernels": "the kernel for the same computation",
    },
    refused={
        "attention_bias": Refusal("adds biases to attention, which transformers' model lacks", unless=(None, False)),
    },
    check=_check,
)  # fmt: skip


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Derive layer kinds from two lists: key heads mean attention, a size an MLP or mixture, neither Mamba-2."""
    prefix = file.scalar("general.architecture")
    blocks, past = config["num_hidden_layers"], config.setdefault("num_nextn_predict_layers", 0)
    if past >= blocks:
        key = f"{prefix}.nextn_predict_layers"
        raise file.error(key, file.offsets[key], f"is {past}; there are {blocks} blocks in total")
    mixtures = "n_routed_experts" in config
    if mixtures:
        need_counts(file, prefix)
    kinds = []
    sizes = zip(_by_layer(file, f"{prefix}.attention.head_count_kv", blocks),
                _by_layer(file, f"{prefix}.feed_forward_length", blocks), strict=True)  # fmt: skip
    for layer, (kv_heads, inner) in enumerate(list(sizes)[: blocks - past]):
        if kv_heads and inner:
            key = f"{prefix}.feed_forward_length"
            problem = f"gives layer {layer} an MLP, but attention.head_count_kv gives it attention; only one is allowed"
            raise file.error(key, file.offsets[key], problem)
        kinds.append(FULL if kv_heads else MAMBA if not inner else MOE if mixtures else MLP)
    config["layers_block_type"], config["num_hidden_layers"] = kinds, len(kinds)
    _complete_recurrent(file, config, prefix)
    first = kinds.index(MLP) if MLP in kinds else 0
    config["mlp_bias"] = f"blk.{first}.ffn_up.bias" in file.tensors
    epsilon = config.pop("first_epsilon", config.get("layer_norm_epsilon"))
    key = f"{prefix}.attention.layer_norm_rms_epsilon"
    at = Source.at(file.path, {"rms_norm_eps": (key, file.offsets.get(key))})
    config["layer_norm_epsilon"] = SIZES["rms_norm_eps"](at, "rms_norm_eps", epsilon)
    if mixtures:  # llama.cpp's defaults for missing keys
        config.setdefault("moe_intermediate_size", config.get("intermediate_size", 1) // config["num_experts_per_tok"])
        config.setdefault("norm_topk_prob", False)


def _by_layer(file: GgufSource, key: str, blocks: int) -> list[int]:
    """Return one number per layer, from a list or a single number, in a checked range."""
    if (value := file.metadata.get(key)) is None:
        raise file.error(key, None, "is missing")
    values = [int(one) for one in value] if hasattr(value, "__len__") else [value] * blocks
    if len(values) != blocks:
        raise file.error(key, file.offsets[key], f"has {len(values)} values for {blocks} layers")
    return values


def _complete_recurrent(file: GgufSource, config: dict[str, Any], prefix: str) -> None:
    inner, heads = config.pop("mamba_inner_size", None), config.get("mamba_num_heads")
    if type(inner) is not int or heads is None or inner % heads:
        problem = f"is {shown(inner)}; {shown(heads)} heads (ssm.time_step_rank) must divide it"
        raise file.error(f"{prefix}.ssm.inner_size", None, problem)
    at = Source.at(file.path, {"mamba_head_dim": (f"{prefix}.ssm.inner_size", None)})
    config["mamba_head_dim"] = _USED["mamba_head_dim"](at, "mamba_head_dim", inner // heads)
    kinds = config["layers_block_type"]
    recurrent = kinds.index(MAMBA) if MAMBA in kinds else 0
    config["use_conv_bias"] = f"blk.{recurrent}.ssm_conv1d.bias" in file.tensors


GGUF = GgufKeys(
    "nemotron_h",
    "NemotronHForCausalLM",
    also=("nemotron_h_moe",),
    used={
        "first_epsilon": "attention.layer_norm_rms_epsilon",
        "layer_norm_epsilon": "attention.layer_norm_epsilon",
        "mamba_inner_size": "ssm.inner_size",
        "mamba_num_heads": "ssm.time_step_rank",
        "n_groups": "ssm.group_count",
        "ssm_state_size": "ssm.state_size",
        "conv_kernel": "ssm.conv_kernel",
        "n_routed_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "moe_latent_size": "moe_latent_size",
        "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "routed_scaling_factor": "expert_weights_scale",
        "norm_topk_prob": "expert_weights_norm",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "num_nextn_predict_layers": "nextn_predict_layers",
    },
    # Features without a key, as in llama.cpp: steps without limits, no biases around Mamba-2. The epsilon is read from
    # either of two keys.
    constants={"time_step_min": 0.0, "use_bias": False, "rms_norm_eps": 1e-5},
    neutral={
        "expert_gating_func": "sigmoid in all models of the architecture",
        "expert_shared_count": "always one, with a key of its own for the size",
    },
    by_layer=("num_key_value_heads", "intermediate_size", "num_experts_per_tok", "moe_intermediate_size"),
    rotates=False,
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a nemotron_h ``config``."""
    names = Names(config)
    hidden = names.hidden

    def mlp(i: int, module: str, suffix: str, inner: int) -> GatedMlp:
        bias = config["mlp_bias"]
        return GatedMlp(
            gate=None,
            up=names.linear(i, f"{module}.up_proj", f"ffn_up{suffix}", inner, hidden, bias=bias),
            down=names.linear(i, f"{module}.down_proj", f"ffn_down{suffix}", hidden, inner, bias=bias),
            activation=RELU_SQUARED,
        )

    def mixture(i: int) -> Experts:
        experts, inner = config["n_routed_experts"], config["moe_intermediate_size"]
        latent, bias = config["moe_latent_size"], config["mlp_bias"]
        width = latent or hidden

        def part(e: int, which: str, shape: tuple[int, int]) -> Linear:
            name = f"model.layers.{i}.mixer.experts.{e}.{which}_proj.weight"
            gguf = Place(f"blk.{i}.ffn_{which}_exps.weight", (experts, *shape), e)
            return Linear(Tensor(name, shape, Place(name, shape), gguf))

        correction = f"model.layers.{i}.mixer.gate.e_score_correction_bias"
        return Experts(
            router=names.linear(i, "mixer.gate", "ffn_gate_inp", experts, hidden),
            correction=Tensor(
                correction, (experts,), Place(correction, (experts,)), Place(f"blk.{i}.exp_probs_b.bias", (experts,))
            ),
            compress=names.linear(i, "mixer.fc1_latent_proj", "ffn_latent_down", latent, hidden, bias=bias)
            if latent
            else None,
            experts=tuple(
                GatedMlp(None, part(e, "up", (inner, width)), part(e, "down", (width, inner)), RELU_SQUARED)
                for e in range(experts)
            ),
            expand=names.linear(i, "mixer.fc2_latent_proj", "ffn_latent_up", hidden, latent, bias=bias)
            if latent
            else None,
            shared=mlp(i, "mixer.shared_experts", "_shexp", config["moe_shared_expert_intermediate_size"]),
            used=config["num_experts_per_tok"],
            scores="sigmoid",
            renormalize=config["norm_topk_prob"],
            sum_epsilon=1e-20,
            scale=config["routed_scaling_factor"],
            groups=config["n_group"],
            groups_used=config["topk_group"],
        )

    def attention(i: int) -> Attention:
        d = names.head_dim
        q, kv = names.heads * d, names.kv_heads * d
        return Attention(
            heads=names.heads,
            kv_heads=names.kv_heads,
            head_dim=d,
            scale=d**-0.5,
            rope=None,
            q=names.linear(i, "mixer.q_proj", "attn_q", q, hidden),
            k=names.linear(i, "mixer.k_proj", "attn_k", kv, hidden),
            v=names.linear(i, "mixer.v_proj", "attn_v", kv, hidden),
            o=names.linear(i, "mixer.o_proj", "attn_output", hidden, q),
        )

    def block(i: int) -> Block:
        norm, kind = names.norm(i, "norm", "attn_norm"), config["layers_block_type"][i]
        if kind == FULL:
            return Block(mixer=attention(i), mixer_norm=norm)
        if kind == MLP:
            return Block(feed_forward=mlp(i, "mixer", "", config["intermediate_size"]), feed_forward_norm=norm)
        if kind == MOE:
            return Block(feed_forward=mixture(i), feed_forward_norm=norm)
        mixer = mamba2(
            names,
            i,
            "mixer",
            heads=config["mamba_num_heads"],
            head_dim=config["mamba_head_dim"],
            groups=config["n_groups"],
            state=config["ssm_state_size"],
            kernel=config["conv_kernel"],
            bias=config["use_bias"],
            convolution_bias=config["use_conv_bias"],
            least_step=config["time_step_min"],
        )
        return Block(mixer=mixer, mixer_norm=norm)

    table, first = (config["vocab_size"], hidden), config["num_hidden_layers"]
    past = tuple(f"blk.{first + i}." for i in range(config["num_nextn_predict_layers"]))
    return names.model(
        block,
        embedding=names.tensor("model.embeddings.weight", "token_embd.weight", table),
        read_past=("mtp.", *past),
        final_norm=Norm(names.tensor("model.norm_f.weight", "output_norm.weight", (hidden,)), names.epsilon),
    )
