"""gpt-oss-20b and gpt-oss-120b: attention sinks, a window in every other layer, biases, and experts with a clamp.

In folders an expert's gate and up rows alternate, and float matrices are transposed. The released weights are MXFP4
(OCP Microscaling Formats, v1.0) in ``NAME_blocks`` and ``NAME_scales``, which is preserved.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.experts import check_experts, need_counts
from ipex_lookahead.architectures.hparams import Source, number, shown
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import (
    Activation,
    Block,
    Experts,
    GatedMlp,
    Linear,
    ModelSpec,
    Place,
    Tensor,
)
from ipex_lookahead.architectures.windows import fill_layer_types
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

_YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def _mxfp4(source: Source, key: str, value: Any) -> dict[str, Any]:
    """Check ``quantization_config``; the format itself is detected from the tensors' names."""
    method = value.get("quant_method") if isinstance(value, dict) else value
    if method != "mxfp4":
        raise UnsupportedModelError(
            f"{source.file}: {key} has quant_method {shown(method)}; this family supports 'mxfp4' and floats",
            hint="use the original checkpoint, or a GGUF file",
        )
    return {"quant_method": "mxfp4"}


def _check(config: dict[str, Any], source: Source) -> None:
    check_experts(config, source, "num_local_experts", default=128)
    fill_layer_types(config, source, lambda layer: layer % 2 == 0)
    config.pop("quantization_config", None)
    if config["rope_scaling"] is None:  # mark unscaled rope explicitly, because the family's default is yarn
        config["rope_scaling"] = {"rope_type": "default"}


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    need_counts(file, "gpt-oss")
    if (config["rope_scaling"] or {}).get("rope_type") == "yarn":
        config["rope_scaling"]["truncate"] = False  # not in the file, but true of all models of this architecture
    theta, key = config["rope_theta"], "gpt-oss.rope.freq_base_swa"
    if file.scalar(key, theta) != theta:
        raise UnsupportedModelError(
            f"{file.path}: {key} is {shown(file.scalar(key))}; all layers must have rope_theta {theta:g}"
        )


KEYS = ConfigKeys(
    used={
        **common_keys(
            "tie_word_embeddings attention_bias sliding_window layer_types num_local_experts"
            " num_experts num_experts_per_tok"
        ),
        "swiglu_alpha": number(0, 1e3),
        "swiglu_limit": number(0, 1e6, above=True),
        "quantization_config": _mxfp4,
    },
    defaults={
        "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0, "rope_scaling": _YARN, "tie_word_embeddings": False, "attention_bias": True,
        "sliding_window": 128, "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
    },
    nullable=("sliding_window",),
    neutral={
        "experts_per_token": "transformers uses num_experts_per_tok instead",
        "hidden_act": "the experts always use the clamped activation",
        "initial_context_length": "the original context, which is among rope's parameters",
        "output_router_logits": "additional outputs",
        "router_aux_loss_coef": "training only",
    },
    check=_check,
)  # fmt: skip
GGUF = GgufKeys(
    "gpt-oss",
    "GptOssForCausalLM",
    used={
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "intermediate_size": "expert_feed_forward_length",
        "sliding_window": "attention.sliding_window",
    },
    constants={"attention_bias": True},
    neutral={"rope.freq_base_swa": "equal to that of all layers, otherwise the file is refused"},
    refused={"attention.sliding_window_pattern": Refusal(unless=(2,))},
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a gpt_oss ``config``."""
    names, turn = Names(config), rope(config)
    clamped = Activation("clamped", alpha=config["swiglu_alpha"], limit=config["swiglu_limit"])

    def block(i: int) -> Block:
        return names.block(
            i,
            names.attention(i, rope=turn, sinks=names.sinks(i)),
            _experts(names, i, clamped),
            feed_forward_norm=names.norm(i, "post_attention_layernorm", "post_attention_norm"),
        )

    return names.model(block)


def _experts(names: Names, layer: int, activation: Activation) -> Experts:
    hidden, inner = names.hidden, names.config["intermediate_size"]
    experts = names.config["num_local_experts"]
    ours, theirs = f"model.layers.{layer}.mlp.experts", f"blk.{layer}"

    def part(expert: int, name: str, gguf: str, whole: str, n_out: int, n_in: int, rows: tuple[int, int]) -> Linear:
        """Return one of an expert's matrices: rows (first, step) of the tensor ``whole`` of a folder."""
        in_all = n_out * rows[1]
        weight = Tensor(
            f"{ours}.{expert}.{name}.weight",
            (n_out, n_in),
            Place(f"{ours}.{whole}", (experts, n_in, in_all), expert, rows, "transposed"),
            Place(f"{theirs}.{gguf}.weight", (experts, n_out, n_in), expert),
        )
        bias = Tensor(
            f"{ours}.{expert}.{name}.bias",
            (n_out,),
            Place(f"{ours}.{whole}_bias", (experts, in_all), expert, rows),
            Place(f"{theirs}.{gguf}.bias", (experts, n_out), expert),
        )
        return Linear(weight, bias)

    def mlp(expert: int) -> GatedMlp:
        return GatedMlp(
            gate=part(expert, "gate_proj", "ffn_gate_exps", "gate_up_proj", inner, hidden, (0, 2)),
            up=part(expert, "up_proj", "ffn_up_exps", "gate_up_proj", inner, hidden, (1, 2)),
            down=part(expert, "down_proj", "ffn_down_exps", "down_proj", hidden, inner, (0, 1)),
            activation=activation,
        )

    return Experts(
        router=names.linear(layer, "mlp.router", "ffn_gate_inp", experts, hidden, bias=True),
        experts=tuple(mlp(expert) for expert in range(experts)),
        used=names.config["num_experts_per_tok"],
        scores="chosen",
        renormalize=False,
    )
