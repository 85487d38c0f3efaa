"""Hunyuan dense (0.5B to 7B; Tencent): a Llama with norms over each head of q and k behind rope."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import Source
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope, stretched
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.architectures.windows import no_window
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal


def _check(config: dict[str, Any], source: Source) -> None:
    if _alpha(config) and config["head_dim"] <= 2:
        raise UnsupportedModelError(f"{source.file}: heads of {config['head_dim']} values have no rope to stretch")


def _alpha(config: dict[str, Any]) -> float | None:
    """What the base of rope is stretched by: these checkpoints say "dynamic", and mean one base for every length."""
    scaling = config["rope_scaling"] or {}
    alpha: float | None = scaling.get("alpha") if scaling.get("rope_type") == "dynamic" else None
    return alpha


KEYS = ConfigKeys(
    used=usual("hidden_act tie_word_embeddings attention_bias"),
    defaults={
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
    neutral={
        "eod_token_id": "the end of a document, which generation_config.json says where it ends a text",
        "pretraining_tp": "the same products in slices; the sums round a little differently",
    },
    refused=no_window("Hunyuan"),
    check=_check,
)
GGUF = GgufKeys(
    "hunyuan-dense",
    "HunYuanDenseV1ForCausalLM",
    constants={"attention_bias": False},
    refused={"rope.dimension_sections": Refusal()},  # of a model that sees
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a hunyuan_v1_dense ``config`` describes."""
    names, alpha, turned = Names(config), _alpha(config), config
    if alpha is not None:
        turned = {**config, "rope_theta": stretched(config["rope_theta"], alpha, names.head_dim), "rope_scaling": None}
    turn = rope(turned)
    norms = {"q": ("query_layernorm", "attn_q_norm"), "k": ("key_layernorm", "attn_k_norm")}

    def norm(i: int, x: str) -> Any:
        ours, theirs = norms[x]
        return names.norm(i, f"self_attn.{ours}", theirs, names.head_dim)

    return names.model(
        lambda i: names.block(
            i,
            names.attention(i, rope=turn, q_norm=norm(i, "q"), k_norm=norm(i, "k"), norm_after_rope=True),
            names.gated_mlp(i),
        )
    )
