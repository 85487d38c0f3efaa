"""Models described by hand: every switch of ``ModelSpec``, drawn at random or set by name, with random weights."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import (
    Activation,
    Attention,
    Block,
    Experts,
    GatedMlp,
    LatentAttention,
    Linear,
    ModelSpec,
    Norm,
    PerLayerGate,
    PerLayerInputs,
    Place,
    Rope,
    Tensor,
    Xielu,
)
from ipex_lookahead.engines.load_weights import Read
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.formats import quantize
from ipex_lookahead.formats.base import PackedWeight

Weights = dict[str, npt.NDArray[np.float32]]

SIZES: dict[str, Any] = {
    "layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 96,
    "context": 512, "tied": True, "epsilon": 1e-5,
}  # fmt: skip
SWITCHES: dict[str, Any] = {
    "mixer_norm": True, "mixer_after": False, "feed_forward_norm": True, "feed_forward_after": False, "bias": "",
    "q_norm": "none", "k_norm": "none", "rope": "whole", "scale": None, "window": None, "softcap": None,
    "sinks": False, "activation": Activation("silu"), "residual_multiplier": 1.0,
    "experts": 0, "used": 0, "scores": "all", "renormalize": False,
    "embedding_multiplier": 1.0, "embedding_norm": None, "logit_multiplier": 1.0, "logit_softcap": None,
    "layer_norm": "", "parallel": False, "norm_after_rope": False, "gated": True,
    "value_norm": None, "one_projection": False, "shared": None, "output_scale": False, "per_layer": 0,
    "correction": False, "groups": (1, 1, 2), "sum_epsilon": 0.0, "router_scale": 1.0, "shared_expert": 0,
    "shared_gate": False, "expert_scales": False, "router_multiplier": None, "latent": None,
    "attention_gate": False, "gate_kind": "sigmoid", "experts_latent": 0, "parts": "both",
}  # fmt: skip
"""A Llama's. ``bias``: those of "qkvogudrh" (gate, up, down, router, head) that have one. A list for one of a block's
switches, of its heads, their size and its norms' epsilon goes around its layers. Norms of a
model are all layer norms with a bias ("biased"), without ("plain"), or none; a parallel block has one.
``groups``: groups of experts, those used, and the best experts of each that count. ``shared_expert``: its size.
``router_multiplier``: a number: a mixture has norms of its own. ``latent``: the sizes of ``LatentAttention``: latent,
passed, rotated, value_dim, and the rank of the queries or None. ``attention_gate``: True, or "heads" for one per head.
``experts_latent``: the size of what experts read and write, 0 for the rows. ``parts``: "mixer" or "feed_forward" for
blocks with one of them alone."""

NAMED: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"q_norm": "head", "k_norm": "head", "head_dim": 32},
    "qwen2": {"bias": "qkv", "tied": False},
    "smollm3": {"rope": ["whole", "whole", "none"], "layers": 3},
    "granite": {
        "embedding_multiplier": 6.0, "residual_multiplier": 0.3, "logit_multiplier": 0.125, "scale": 0.05,
    },
    "phi4": {"rope": "half", "heads": 3, "kv_heads": 3, "hidden": 72, "head_dim": 24, "window": 40},
    "gemma2": {
        "mixer_after": True, "feed_forward_after": True, "activation": Activation("gelu_tanh"), "softcap": 5.0,
        "logit_softcap": 3.0, "embedding_multiplier": 8.0, "window": [7, None], "scale": 0.2,
    },
    "gemma3": {
        "mixer_after": True, "feed_forward_after": True, "activation": Activation("gelu_tanh"), "q_norm": "head",
        "k_norm": "head", "rope": ["local", "whole"], "window": [33, None], "head_dim": 40, "kv_heads": 1,
    },
    "muse-glimmer": {
        "embedding_norm": 1e-5, "mixer_after": True, "feed_forward_after": True, "attention_gate": True,
        "q_norm": "head", "k_norm": "head", "rope": ["none", "whole"], "window": [None, 9], "logit_softcap": 20.0,
        "logit_multiplier": 0.2, "hidden": 72, "tied": False,
    },
    "olmo3": {
        "mixer_norm": False, "feed_forward_norm": False, "mixer_after": True, "feed_forward_after": True,
        "q_norm": "whole", "k_norm": "whole", "window": [20, None], "rope": ["whole", "yarn"], "kv_heads": 4,
    },
    "ministral3": {"rope": "beta", "head_dim": 24},
    "gpt_oss_attention": {
        "sinks": True, "bias": "qkvogud", "window": [5, None], "rope": "yarn", "head_dim": 64, "heads": 8,
        "activation": Activation("clamped", 1.702, 0.7),
    },
    "mixtral": {"experts": 4, "used": 2, "scores": "chosen"},
    "qwen3_moe": {"experts": 9, "used": 3, "renormalize": True, "q_norm": "head", "k_norm": "head", "intermediate": 48},
    "qwen3_moe_plain": {"experts": 5, "used": 2, "intermediate": 37},
    "gpt_oss": {
        "sinks": True, "bias": "qkvogudr", "window": [5, None], "rope": "yarn", "experts": 6, "used": 3,
        "scores": "chosen", "activation": Activation("clamped", 1.702, 0.7), "intermediate": 40,
    },
    "mixture_after": {
        "experts": [0, 3], "used": [0, 1], "mixer_after": True, "feed_forward_after": True, "residual_multiplier": 0.5,
        "bias": "d",
    },
}  # fmt: skip
"""The switches of families as their models have them, and some that no family has."""


def tensor(name: str, *shape: int) -> Tensor:
    """A weight that is a whole tensor of that name in every file."""
    place = Place(name, shape)
    return Tensor(name, shape, place, place)


def make_spec(**options: Any) -> ModelSpec:
    """``SIZES`` and ``SWITCHES``, changed by ``options``."""
    unknown = options.keys() - SIZES.keys() - SWITCHES.keys()
    assert not unknown, unknown
    o = {**SIZES, **SWITCHES, **options}
    hidden = o["hidden"]
    ropes: dict[tuple[str, int], Rope] = {}

    def normed(name: str, n: int, epsilon: float) -> Norm:
        bias = tensor(f"{name}.bias", n) if o["layer_norm"] == "biased" else None
        return Norm(tensor(name, n), epsilon, bias, centered=bool(o["layer_norm"]))

    def block(i: int) -> Block:
        def s(name: str) -> Any:
            return o[name][i % len(o[name])] if isinstance(o[name], list) else o[name]

        at = f"layers.{i}."

        def norm(name: str, there: bool, n: int = hidden) -> Norm | None:
            return normed(at + name, n, s("epsilon")) if there else None

        def linear(name: str, letter: str, n_out: int, n_in: int) -> Linear:
            bias = tensor(f"{at}{name}.bias", n_out) if letter in s("bias") else None
            return Linear(tensor(f"{at}{name}.weight", n_out, n_in), bias)

        def mlp(name: str, inner: int = s("intermediate"), width: int = hidden) -> GatedMlp:
            kind = s("activation")
            return GatedMlp(
                linear(name + "gate", "g", inner, width) if s("gated") else None,
                linear(name + "up", "u", inner, width),
                linear(name + "down", "d", width, inner),
                kind,
                Xielu(*(tensor(f"{at}{one}", 1) for one in Xielu.__slots__)) if kind.kind == "xielu" else None,
            )

        def latent_attention(latent: int, passed: int, rotated: int, values: int, rank: int | None) -> LatentAttention:
            heads = s("heads")
            return LatentAttention(
                heads=heads,
                latent=latent,
                passed=passed,
                rotated=rotated,
                value_dim=values,
                scale=(passed + rotated) ** -0.5 if s("scale") is None else s("scale"),
                rope=ropes.setdefault((s("rope"), rotated), _rope(s("rope"), rotated)),
                q_a=None if rank is None else linear("q_a", "q", rank, hidden),
                q_norm=norm("q_norm", rank is not None, rank or 0),
                kv_a=linear("kv_a", "k", latent + rotated, hidden),
                kv_norm=normed(at + "kv_norm", latent, s("epsilon")),
                q=linear("q", "q", heads * (passed + rotated), rank or hidden),
                k_b=tuple(linear(f"k_b.{h}", "k", latent, passed) for h in range(heads)),
                v_b=tuple(linear(f"v_b.{h}", "v", values, latent) for h in range(heads)),
                o=linear("o", "o", hidden, heads * values),
            )

        heads, kv_heads, d = s("heads"), s("kv_heads"), s("head_dim")
        q, kv = heads * d, kv_heads * d
        attention = Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=d,
            q=linear("q", "q", q, hidden),
            k=linear("k", "k", kv, hidden) if s("shared") is None else None,
            v=linear("v", "v", kv, hidden) if s("shared") is None and not s("one_projection") else None,
            gate=linear("attention_gate", "", heads if s("attention_gate") == "heads" else q, hidden)
            if s("attention_gate")
            else None,
            gate_kind=s("gate_kind"),
            value_norm=s("value_norm") if s("shared") is None else None,
            shared=s("shared"),
            o=linear("o", "o", hidden, q),
            scale=d**-0.5 if s("scale") is None else s("scale"),
            rope=None if s("rope") == "none" else ropes.setdefault((s("rope"), d), _rope(s("rope"), d)),
            q_norm=norm("q_norm", s("q_norm") != "none", d if s("q_norm") == "head" else q),
            k_norm=norm("k_norm", s("k_norm") != "none" and s("shared") is None, d if s("k_norm") == "head" else kv),
            norm_after_rope=s("norm_after_rope"),
            window=s("window"),
            softcap=s("softcap"),
            sinks=tensor(at + "sinks", heads) if s("sinks") else None,
        )
        mixer = attention if s("latent") is None else latent_attention(*s("latent"))
        experts, (groups, groups_used, group_best), own = s("experts"), s("groups"), s("router_multiplier") is not None
        latent = s("experts_latent")
        mixture = experts and Experts(
            router_norm=norm("router_norm", own),
            router_multiplier=s("router_multiplier") if own else 1.0,
            router=linear("router", "r", experts, hidden),
            shared_gate=linear("shared_gate", "r", 1, hidden) if s("shared_gate") else None,
            correction=tensor(at + "correction", experts) if s("correction") else None,
            expert_scales=tensor(at + "expert_scales", experts) if s("expert_scales") else None,
            norm=norm("experts_norm", own),
            compress=linear("compress", "", latent, hidden) if latent else None,
            experts=tuple(mlp(f"experts.{e}.", width=latent or hidden) for e in range(experts)),
            expand=linear("expand", "", hidden, latent) if latent else None,
            after=norm("experts_after", own),
            shared=mlp("shared.", s("shared_expert")) if s("shared_expert") else None,
            shared_after=norm("shared_after", own),
            used=s("used"),
            scores=s("scores"),
            renormalize=s("renormalize"),
            sum_epsilon=s("sum_epsilon"),
            scale=s("router_scale"),
            groups=groups,
            groups_used=groups_used,
            group_best=group_best,
        )
        if s("parallel"):
            return Block(
                mixer=mixer,
                feed_forward=mixture or mlp(""),
                mixer_norm=norm("mixer_norm", s("mixer_norm")),
                parallel=True,
            )
        mixes, feeds = (s("parts") in ("both", part) for part in ("mixer", "feed_forward"))
        return Block(
            mixer=mixer if mixes else None,
            feed_forward=(mixture or mlp("")) if feeds else None,
            mixer_norm=norm("mixer_norm", mixes and s("mixer_norm")),
            feed_forward_norm=norm("feed_forward_norm", feeds and s("feed_forward_norm")),
            mixer_after=norm("mixer_after", mixes and s("mixer_after")),
            feed_forward_after=norm("feed_forward_after", feeds and s("feed_forward_after")),
            residual_multiplier=s("residual_multiplier"),
            per_layer=PerLayerGate(
                layer=i,
                gate=linear("values", "g", o["per_layer"], hidden),
                out=linear("out", "d", hidden, o["per_layer"]),
            )
            if o["per_layer"]
            else None,
            per_layer_after=norm("per_layer_after", bool(o["per_layer"]) and s("mixer_after")),
            output_scale=tensor(at + "output_scale", 1) if s("output_scale") else None,
        )

    total = o["layers"] * o["per_layer"]
    per_layer = PerLayerInputs(
        width=o["per_layer"],
        layers=o["layers"],
        table=tensor("per_layer.table", o["vocab"] + 3, total),
        table_multiplier=0.7,
        projection=Linear(tensor("per_layer.projection", total, hidden)),
        projection_multiplier=1.3,
        norm=Norm(tensor("per_layer.norm", o["per_layer"]), 1e-5),
        multiplier=0.6,
    )
    head = Linear(tensor("head", o["vocab"], hidden), tensor("head.bias", o["vocab"]) if "h" in o["bias"] else None)
    return ModelSpec(
        model_type="made_up",
        hidden=hidden,
        vocab=o["vocab"],
        max_context=o["context"],
        embedding=tensor("embedding", o["vocab"], hidden),
        per_layer=per_layer if total else None,
        layers=tuple(block(i) for i in range(o["layers"])),
        final_norm=normed("final_norm", hidden, o["epsilon"][0] if isinstance(o["epsilon"], list) else o["epsilon"]),
        head=None if o["tied"] else head,
        embedding_multiplier=o["embedding_multiplier"],
        embedding_norm=o["embedding_norm"],
        logit_multiplier=o["logit_multiplier"],
        logit_softcap=o["logit_softcap"],
    )


def _rope(kind: str, head_dim: int) -> Rope:
    rotated = max(head_dim // 2 // 2 * 2, 2) if kind.endswith("half") else head_dim
    theta = 100.0 if kind == "local" else 10000.0
    frequencies = (theta ** -(np.arange(0, rotated, 2) / rotated)).astype(np.float32)
    if kind == "yarn":
        return Rope(frequencies / np.float32(3), 1.2)
    if kind.startswith("interleaved"):
        return Rope(frequencies, 1.1, interleaved=True)
    return Rope(frequencies, query_beta=0.3, query_original=9) if kind == "beta" else Rope(frequencies)


def random_native_switches(chance: random.Random) -> dict[str, Any]:
    """``random_switches``, and words that the native engine alone has."""
    drawn = random_switches(chance)
    layers = drawn["layers"]
    drawn["layer_norm"] = chance.choice(("", "", "plain", "biased"))
    drawn["parallel"] = [chance.random() < 0.3 for _ in range(layers)]
    drawn["rope"] = [chance.choice((one, one, "interleaved", "interleaved half")) for one in drawn["rope"]]
    drawn["norm_after_rope"] = [
        "whole" not in (q, k) and not rope.startswith("interleaved") and chance.random() < 0.4
        for q, k, rope in zip(drawn["q_norm"], drawn["k_norm"], drawn["rope"], strict=True)
    ]
    drawn["one_projection"] = [norm != "whole" and chance.random() < 0.3 for norm in drawn["k_norm"]]
    drawn["attention_gate"] = [chance.choice((False, False, False, True, "heads")) for _ in range(layers)]
    drawn["gate_kind"] = [chance.choice(("sigmoid", "softplus")) for _ in range(layers)]
    drawn["experts_latent"] = [chance.choice((0, 0, 0, 17, 64)) for _ in range(layers)]
    drawn["value_norm"] = [chance.choice((None, None, 1e-6, 0.3)) for _ in range(layers)]
    drawn["output_scale"] = [chance.random() < 0.3 and not one for one in drawn["parallel"]]
    drawn["per_layer"] = 0 if any(drawn["parallel"]) else chance.choice((0, 0, 5, 32))
    if chance.random() < 0.4:
        drawn["gated"] = False
        own = () if any(drawn["experts"]) else (Activation("xielu"),)
        drawn["activation"] = chance.choice((Activation("relu_squared"), Activation("gelu_tanh"), *own))
    return drawn


def random_switches(chance: random.Random, *, mixtures: bool = True) -> dict[str, Any]:
    """Sizes and switches drawn at random, each layer's its own where the model may differ from layer to layer."""
    heads = chance.choice((1, 1, 2, 3, 4, 5, 8, 21))
    head_dim = chance.choice((8, 8, 16, 24, 32, 40, 64, 80, 96, 128, 256)) if heads < 5 else chance.choice((8, 16))
    layers = chance.choice((1, 2, 3))

    def each(*values: Any) -> list[Any]:
        return [chance.choice(values) for _ in range(layers)]

    experts = each(0, 0, 1, 3, 8) if mixtures and chance.random() < 0.4 else [0] * layers
    norms = each("none", "none", "head", "whole")
    places = [chance.choice(((1, 0), (1, 0), (1, 1), (0, 1), (0, 0))) for _ in range(layers)]
    activation = chance.choice((Activation("silu"), Activation("gelu_tanh"), Activation("clamped", 1.7, 0.5)))
    return {
        "layers": layers,
        "heads": heads,
        "head_dim": head_dim,
        "kv_heads": chance.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "hidden": chance.choice((8, 20, 33, 64, 72, 100, 172)),
        "intermediate": each(5, 32, 47, 96, 129, 260),
        "tied": chance.random() < 0.7,
        "mixer_norm": [bool(before) for before, _ in places],
        "mixer_after": [bool(after) for _, after in places],
        "feed_forward_norm": [bool(before) for before, _ in places],
        "feed_forward_after": [bool(after) for _, after in places],
        "bias": "".join(letter for letter in "qkvogudrh" if chance.random() < 0.3),
        "q_norm": norms,
        "k_norm": [chance.choice((norm, norm, "none")) for norm in norms],
        "rope": each("whole", "whole", "half", "none", "local", "yarn", "beta"),
        "scale": chance.choice((None, None, 0.1)),
        "window": each(None, None, 1, 2, 7, 16, 33, 63, 64, 65, 100, 255, 256, 257, 300),
        "softcap": each(None, None, None, 2.0, 50.0),
        "sinks": each(False, False, True),
        "activation": activation,
        "residual_multiplier": chance.choice((1.0, 1.0, 0.3)),
        "experts": experts,
        "used": [min(n, chance.choice((1, 2, 3))) for n in experts],
        "scores": each("all", "chosen"),
        "renormalize": each(False, True),
        "embedding_multiplier": chance.choice((1.0, 1.0, 5.0)),
        "embedding_norm": chance.choice((None, None, 1e-5, 0.3)),
        "logit_multiplier": chance.choice((1.0, 1.0, 0.2)),
        "logit_softcap": chance.choice((None, None, 3.0)),
    }


def random_weights(spec: ModelSpec, seed: int = 0) -> Weights:
    """Float32, of sizes at which every switch shows: norms about 1, biases and sinks about 0."""
    rng = np.random.default_rng(seed)
    made: Weights = {}
    for one in spec.tensors():
        values = rng.standard_normal(one.shape)
        if one.is_matrix:
            values *= 0.5 if one is spec.embedding or one is spec.head_weight else 1 / math.sqrt(one.shape[1])
        elif one.name.endswith("eps"):
            values = -0.02 - 0.01 * abs(values)
        elif ("norm" in one.name or "after" in one.name) and not one.name.endswith("bias"):
            values = 1 + 0.3 * values
        elif not one.name.endswith("sinks"):
            values *= 0.3
        made[one.name] = values.astype(np.float32)
    return made


def reader(weights: Weights, low_bit: str | Callable[[Tensor], str] = "fp32") -> Read:
    """Weights as engines read them: matrices in a format, or in what a function returns; routers are quantized too."""

    def read(one: Tensor) -> PackedWeight:
        values = PackedWeight("fp32", one.shape, weights[one.name])
        return quantize(values, low_bit(one) if callable(low_bit) else low_bit) if one.is_matrix else values

    return read


def native_engine(
    spec: ModelSpec, weights: Weights, low_bit: str = "fp32", *, threads: int = 1, kv_cache: str = "fp16"
) -> NativeEngine:
    """The native engine on those weights; see :func:`reader`."""
    return NativeEngine.build(spec, low_bit, reader(weights, low_bit), threads=threads, kv_cache=kv_cache)
