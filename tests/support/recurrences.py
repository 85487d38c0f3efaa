"""Models with recurrent layers, described by hand, and walks over the caches of two engines in step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import (
    Activation,
    Attention,
    Block,
    GatedDeltaNet,
    GatedMlp,
    Linear,
    Mamba2,
    ModelSpec,
    Norm,
    Rope,
    ShortConv,
)
from ipex_lookahead.engines.api import HELD, Batch, OutputRequest
from tests.support.specs import tensor

SIZES: dict[str, Any] = {
    "hidden": 64, "vocab": 96, "context": 2048, "heads": 4, "groups": 2, "key_dim": 16, "value_dim": 16, "kernel": 4,
    "tiled": False, "bias": False, "norm_group": 32, "gate_first": True, "least": 0.0, "most": float("inf"),
    "whole_norm": True, "length_epsilon": 1e-6,
}  # fmt: skip
"""Sizes and switches. ``bias``: of the convolutions. ``norm_group``, ``gate_first``, ``least``, ``most``: Mamba-2's;
``whole_norm``: whether its norm has weights for all values instead of those of a group."""
ODD: dict[str, Any] = {
    "hidden": 72, "heads": 6, "groups": 3, "key_dim": 23, "value_dim": 40, "kernel": 3, "tiled": True, "bias": True,
    "norm_group": 60, "gate_first": False, "least": 0.4, "most": 0.9, "length_epsilon": 0.01,
}  # fmt: skip
"""Sizes that tiles, blocks of 32 and four sums do not divide, and every switch the other way."""


def recurrent_spec(*kinds: str, **options: Any) -> ModelSpec:
    """A model with a block for each of ``kinds``: "delta", "mamba", "short", "attention" or "mlp".

    A name with " alone" behind it is a block without the MLP that the others have.
    """
    assert not options.keys() - SIZES.keys()
    o = {**SIZES, **options}
    hidden = o["hidden"]
    frequencies = (10000.0 ** -(np.arange(0, 16, 2) / 16)).astype(np.float32)
    rope = Rope(frequencies)

    def block(i: int, name: str) -> Block:
        kind, _, alone = name.partition(" ")
        at = f"layers.{i}."

        def linear(name: str, n_out: int, n_in: int = hidden) -> Linear:
            return Linear(tensor(f"{at}{name}.weight", n_out, n_in))

        keys, values = o["groups"] * o["key_dim"], o["heads"] * o["value_dim"]
        channels = 2 * keys + values
        bias = tensor(at + "convolution_bias", hidden if kind == "short" else channels) if o["bias"] else None
        sizes = ("heads", "groups", "tiled", "key_dim", "value_dim", "kernel")
        shared: dict[str, Any] = {name: o[name] for name in sizes}
        shared |= {
            "inputs": linear("inputs", channels), "gate": linear("gate", values), "steps": linear("steps", o["heads"]),
            "convolution": tensor(at + "convolution", channels * o["kernel"]), "rate": tensor(at + "rate", o["heads"]),
            "step_bias": tensor(at + "step_bias", o["heads"]), "out": linear("out", hidden, values),
        }  # fmt: skip
        mixer: Any = None
        if kind == "delta":
            norm = Norm(tensor(at + "norm", o["value_dim"]), 1e-5)
            mixer = GatedDeltaNet(
                **shared, beta=linear("beta", o["heads"]), norm=norm, length_epsilon=o["length_epsilon"]
            )
        elif kind == "mamba":
            norm = Norm(tensor(at + "norm", values if o["whole_norm"] else o["norm_group"]), 1e-5)
            mixer = Mamba2(
                **shared, norm=norm, norm_group=o["norm_group"], gate_first=o["gate_first"], least_step=o["least"],
                most_step=o["most"], convolution_bias=bias, skip=tensor(at + "skip", o["heads"]),
            )  # fmt: skip
        elif kind == "short":
            mixer = ShortConv(
                kernel=o["kernel"], b=linear("b", hidden), c=linear("c", hidden), x=linear("x", hidden),
                convolution=tensor(at + "convolution", hidden * o["kernel"]), convolution_bias=bias,
                out=linear("out", hidden, hidden),
            )  # fmt: skip
        elif kind == "attention":
            mixer = Attention(
                heads=4, kv_heads=2, head_dim=16, q=linear("q", 64), k=linear("k", 32), v=linear("v", 32),
                o=linear("o", hidden, 64), scale=0.25, rope=rope,
            )  # fmt: skip
        mlp = GatedMlp(linear("mlp.gate", 96), linear("mlp.up", 96), linear("mlp.down", hidden, 96), Activation("silu"))
        has_mlp = not alone or kind == "mlp"
        return Block(
            mixer_norm=None if mixer is None else Norm(tensor(at + "mixer_norm", hidden), 1e-5),
            mixer=mixer,
            feed_forward_norm=Norm(tensor(at + "feed_forward_norm", hidden), 1e-5) if has_mlp else None,
            feed_forward=mlp if has_mlp else None,
            residual_multiplier=0.7 if alone else 1.0,
        )

    return ModelSpec(
        model_type="made_up",
        hidden=hidden,
        vocab=o["vocab"],
        max_context=o["context"],
        embedding=tensor("embedding", o["vocab"], hidden),
        layers=tuple(block(i, kind) for i, kind in enumerate(kinds)),
        final_norm=Norm(tensor("final_norm", hidden), 1e-5),
        head=None,
    )


@dataclass
class Walked:
    """A sequence in both engines: its caches, and the rows of the step that may be kept, of which some are settled."""

    caches: list[Any]
    parents: list[int] = field(default_factory=list)
    settled: int = 0


def walk_in_step(first: Any, second: Any, seed: int, deeds: int = 30, longest: int = 60) -> None:
    """The same random deeds on the caches of two engines: equal logits, lengths and bytes of states after each.

    Steps of one or several sequences are chains or trees, settled in part or whole, held, kept in part or dropped.
    """
    rng = np.random.default_rng(seed)
    engines = (first, second)
    live = [Walked([one.new_cache() for one in engines])]
    for _ in range(deeds):
        one = live[int(rng.integers(len(live)))]
        length = one.caches[0].length
        deed = rng.choice(["step"] * 6 + ["crop", "fork", "new", "checkpoint"])
        if deed == "step":
            count = int(rng.integers(1, len(live) + 1))
            _step(engines, [live[i] for i in rng.permutation(len(live))[:count]], rng, longest)
        elif deed == "crop":
            to = int(rng.integers(max(length - 6, 0), length + 1))
            assert len({cache.crop(to) for cache in one.caches}) == 1
            one.parents = []
        elif deed == "checkpoint":
            for cache in one.caches:
                cache.checkpoint()
            one.parents = []
        elif len(live) < 3:
            made = [cache.fork() for cache in one.caches] if deed == "fork" else [each.new_cache() for each in engines]
            live.append(Walked(made))
        for each in live:
            assert len({cache.length for cache in each.caches}) == 1
            assert len({cache.state_bytes for cache in each.caches}) == 1


def _step(engines: tuple[Any, ...], chosen: list[Walked], rng: np.random.Generator, longest: int) -> None:
    counts, settled = [], []
    for one in chosen:
        if one.caches[0].length > longest:
            for cache in one.caches:
                cache.crop(0)
        count = int(rng.integers(1, 12))
        sure = int(rng.choice([HELD, 0, 0, 0, count, int(rng.integers(0, count + 1))]))
        least = max(sure, 0)
        branches = bool(rng.random() < 0.5)
        one.parents = [i - 1 if i <= least or not branches else int(rng.integers(least - 1, i)) for i in range(count)]
        one.settled = least
        counts.append(count)
        settled.append(sure)
    tokens = rng.integers(0, engines[0].vocab_size, sum(counts)).astype(np.int32)
    parents = np.array([parent for one in chosen for parent in one.parents], np.int32)
    made = []
    for i, engine in enumerate(engines):
        caches = [one.caches[i] for one in chosen]
        made.append(engine.forward(Batch(caches, counts, tokens, parents, OutputRequest(logits=True), settled)).logits)
    assert made[0].tobytes() == made[1].tobytes(), (counts, settled, parents.tolist())
    for one in chosen:
        path = [int(rng.integers(max(one.settled - 1, 0), len(one.parents)))]
        while one.parents[path[0]] >= 0:
            path.insert(0, one.parents[path[0]])
        path = path[: int(rng.integers(one.settled, len(path) + 1))]
        if rng.random() < 0.85:
            for cache in one.caches:
                cache.keep(path)
            one.parents = []
