"""Granite's MLP and experts, with gate and up in one tensor of folders, and the rope of each layer."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import SIZES, Source, check_even_heads, check_one_per_layer, shown
from ipex_lookahead.architectures.keys import LAYER_THETA, GgufSource
from ipex_lookahead.architectures.names import SILU, Names
from ipex_lookahead.architectures.spec import Experts, GatedMlp, Linear, Place, Tensor
from ipex_lookahead.architectures.windows import fill_layer_types, gguf_layer_types

HUB = {"router": "router.layer", "gate_up": "input_linear.weight", "down": "output_linear.weight"}
"""Names of a mixture's tensors in folders of Granite 3 and 4."""
SWA = {"router": "router", "gate_up": "experts.gate_up_proj", "down": "experts.down_proj"}
"""The same in folders of Granite with windows."""


def shared_mlp(names: Names, layer: int, suffix: str, *, fused: bool = False) -> GatedMlp:
    """Return the MLP for all rows.

    Args:
        names: makes the tensors.
        layer: number of the block.
        suffix: suffix of the names in GGUF files, "_shexp" next to experts.
        fused: True if gate and up are one tensor in GGUF files, as in folders.
    """
    hidden, inner = names.hidden, names.config["shared_intermediate_size"]
    module, theirs = f"model.layers.{layer}.shared_mlp", f"blk.{layer}.ffn_"

    def half(which: str, first: int) -> Linear:
        both = Place(f"{module}.input_linear.weight", (2 * inner, hidden), rows=(first, 1))
        file = Place(f"{theirs}{which}{suffix}.weight", (inner, hidden))
        if fused:
            file = Place(f"{theirs}up{suffix}.weight", (2 * inner, hidden), rows=(first, 1))
        return Linear(Tensor(f"model.layers.{layer}.mlp.{which}_proj.weight", (inner, hidden), both, file))

    shape = (hidden, inner)
    place = Place(f"{module}.output_linear.weight", shape)
    down = Tensor(
        f"model.layers.{layer}.mlp.down_proj.weight", shape, place, Place(f"{theirs}down{suffix}.weight", shape)
    )
    return GatedMlp(half("gate", 0), half("up", inner), Linear(down), SILU)


def mixture(names: Names, layer: int, shared: GatedMlp | None = None, files: dict[str, str] = HUB) -> Experts:
    """Return the experts of a block; ``files`` names their tensors in folders."""
    hidden, size, experts = names.hidden, names.config["intermediate_size"], names.config["num_local_experts"]
    module = f"model.layers.{layer}.block_sparse_moe"

    def part(expert: int, which: str, first: int, shape: tuple[int, int]) -> Linear:
        is_down = which == "down"
        fused = f"{module}.{files['down' if is_down else 'gate_up']}"
        whole = (experts, *shape) if is_down else (experts, 2 * shape[0], shape[1])
        hf = Place(fused, whole, expert, None if is_down else (first, 1))
        gguf = Place(f"blk.{layer}.ffn_{which}_exps.weight", (experts, *shape), expert)
        return Linear(Tensor(f"{module}.experts.{expert}.{which}_proj.weight", shape, hf, gguf))

    return Experts(
        router=names.linear(layer, f"block_sparse_moe.{files['router']}", "ffn_gate_inp", experts, hidden),
        experts=tuple(
            GatedMlp(
                part(e, "gate", 0, (size, hidden)),
                part(e, "up", size, (size, hidden)),
                part(e, "down", 0, (hidden, size)),
                SILU,
            )
            for e in range(experts)
        ),
        shared=shared,
        used=names.config["num_experts_per_tok"],
        scores="chosen",
        renormalize=False,
    )


def moe_shared(names: Names, layer: int) -> Experts:
    """Return a mixture with an MLP for all rows, if its size is not 0."""
    has_shared = names.config["shared_intermediate_size"]
    return mixture(names, layer, shared_mlp(names, layer, "_shexp") if has_shared else None)


def moe_swa(names: Names, layer: int) -> Experts:
    """Return the mixture of a Granite with windows, in GGUF files with gate and up in one tensor."""
    has_shared = names.config["shared_intermediate_size"]
    shared = shared_mlp(names, layer, "_shexp", fused=True) if has_shared else None
    return mixture(names, layer, shared, SWA)


# ---- windows and rope by layer ---------------------------------------------------------------------------------------


def layer_theta(source: Source, key: str, value: Any) -> list[float]:
    """Check the rope base of each layer, 0 for a layer without rope."""
    if not isinstance(value, list):
        raise source.error(key, f"is {shown(value)}; it must be a list with a rope base, or 0, for each layer")
    return [0.0 if one == 0 and not isinstance(one, bool) else SIZES["rope_theta"](source, key, one) for one in value]


def check_swa(config: dict[str, Any], source: Source) -> None:
    """Give windows to all layers except each fourth, from the first on, and the model's rope to every layer."""
    check_even_heads(config, source)
    fill_layer_types(config, source, lambda layer: layer % 4 != 0)
    if config.get(LAYER_THETA) is None:
        config[LAYER_THETA] = [config["rope_theta"]] * config["num_hidden_layers"]
    check_one_per_layer(config, source, LAYER_THETA)


def complete_swa(file: GgufSource, config: dict[str, Any]) -> None:
    """Fill in what GGUF files of a Granite with windows omit: biases, the rope of each layer, and the scale."""
    architecture, layers = file.scalar("general.architecture"), config["num_hidden_layers"]
    for key in ("sliding_window", "sliding_window_pattern"):
        if key not in config:
            raise file.error(f"{architecture}.attention.{key}", None, "is missing")
    gguf_layer_types(file, config, architecture, every=4)
    key = f"{architecture}.attention.rope_pattern"
    pattern = [bool(one) for one in file.metadata.get(key, [True] * layers)]
    if len(pattern) != layers:
        raise file.error(key, file.offsets.get(key), f"has {len(pattern)} values for {layers} layers")
    config[LAYER_THETA] = [config["rope_theta"] if one else 0.0 for one in pattern]
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if not file.scalar(f"{architecture}.expert_count", 0):
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    config.setdefault("attention_multiplier", config["head_dim"] ** -0.5)
