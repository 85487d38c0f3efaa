"""Granite 4 (dense): a Granite whose MLP is what its hybrids share between experts; attention in every layer.

Their GGUF files call themselves ``granite``, and are read as that.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import granite
from ipex_lookahead.architectures.experts import MAX_EXPERTS
from ipex_lookahead.architectures.hparams import SIZES, Source, boolean, check_even_heads, integer, one_of, shown
from ipex_lookahead.architectures.keys import ConfigKeys
from ipex_lookahead.architectures.names import SILU, Names
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import GatedMlp, Linear, ModelSpec, Place, Tensor
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

_ATTENTION = ("attention", "full_attention")
_RECURRENT = "for recurrent layers, and there are none"


def _layer_types(source: Source, key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise source.error(key, f"is {shown(value)}; it must be a list of kinds of layers")
    if other := [one for one in value if one not in _ATTENTION]:
        raise UnsupportedModelError(
            f"{source.file}: {key} is {shown(value)}: {shown(other[0])} is no attention; a Granite 4 here has attention"
            " in every layer",
            hint="take one of the dense models of the family, whose names have no h, or a GGUF file in llama.cpp",
        )
    return list(value)


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    if experts := config["num_local_experts"]:
        raise UnsupportedModelError(
            f"{source.file}: num_local_experts is {experts}, which has experts beside a shared MLP; it must be 0"
        )
    types, layers = config["layer_types"], config["num_hidden_layers"]
    if types is None:
        raise UnsupportedModelError(
            f"{source.file}: layer_types is not there, so all layers are recurrent; a Granite 4 here has attention in "
            "every layer"
        )
    if len(types) != layers:
        raise source.error("layer_types", f"names {len(types)} layers; there are {layers}")


KEYS = ConfigKeys(
    used={
        **{key: check for key, check in granite.KEYS.used.items() if key != "mlp_bias"},
        "attention_bias": boolean,
        "shared_intermediate_size": SIZES["intermediate_size"],
        "num_local_experts": integer(0, MAX_EXPERTS),
        "position_embedding_type": one_of("rope", "nope"),
        "mamba_n_heads": integer(1, 1 << 16),  # transformers' class holds it to the hidden size, whatever layers are
        "layer_types": _layer_types,
    },
    defaults={
        **{key: value for key, value in granite.KEYS.defaults.items() if key != "mlp_bias"},
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "shared_intermediate_size": 1024,
        "num_local_experts": 8,
        "position_embedding_type": None,
        "mamba_n_heads": 128,
        "layer_types": None,
    },
    neutral={
        **dict.fromkeys((
            "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_expand",
            "mamba_n_groups", "mamba_proj_bias", "time_step_limit",
        ), _RECURRENT),
        "num_experts_per_tok": "how many experts a row goes to, and there are none",
        "output_router_logits": "what is returned beside the logits",
        "router_aux_loss_coef": "training only",
    },
    refused={
        "layers_block_type": Refusal("is another word for layer_types, which is read", unless=(None,)),
        "sliding_window": Refusal(
            "limits how far attention reaches back, which transformers' Granite 4 does not", unless=(None,)
        ),
    },
    check=_check,
)  # fmt: skip
GGUF = None


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a granitemoehybrid ``config`` describes."""
    names = Names(config, pairs=True)
    turn = rope(config) if config["position_embedding_type"] == "rope" else None
    hidden, inner = names.hidden, config["shared_intermediate_size"]

    def half(i: int, which: str, first: int) -> Linear:
        """Gate or up: rows of a matrix that holds both; in a GGUF file each is one of its own."""
        both = Place(f"model.layers.{i}.shared_mlp.input_linear.weight", (2 * inner, hidden), rows=(first, 1))
        alone = Place(f"blk.{i}.ffn_{which}.weight", (inner, hidden))
        return Linear(Tensor(f"model.layers.{i}.mlp.{which}_proj.weight", (inner, hidden), both, alone))

    def mlp(i: int) -> GatedMlp:
        shape = (hidden, inner)
        place = Place(f"model.layers.{i}.shared_mlp.output_linear.weight", shape)
        down = Tensor(f"model.layers.{i}.mlp.down_proj.weight", shape, place, Place(f"blk.{i}.ffn_down.weight", shape))
        return GatedMlp(half(i, "gate", 0), half(i, "up", inner), Linear(down), SILU)

    return granite.decoder(names, turn, mlp)
