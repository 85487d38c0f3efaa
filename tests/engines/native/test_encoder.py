"""The native encoder by itself: chains and blocks compared with numpy, distances, slices, and wrong arguments."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures.encoder import EncoderSpec, PlainNorm
from ipex_lookahead.architectures.spec import (
    Activation,
    Attention,
    Block,
    Clip,
    GatedMlp,
    Linear,
    Norm,
    Place,
    Rope,
    Tensor,
)
from ipex_lookahead.engines.native.core import ISA_VARIABLE, available_isas
from ipex_lookahead.engines.native.encoder import NativeEncoder
from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDTH = 40, 4, 2, 24, 56


def tensor(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, Place(name, shape), Place(name, shape))


def linear(name: str, n_out: int, n_in: int, *, bias: bool = True, clip: bool = False) -> Linear:
    limits = [tensor(f"{name}.{limit}") for limit in ("input_min", "input_max", "output_min", "output_max")]
    return Linear(
        tensor(f"{name}.weight", n_out, n_in),
        tensor(f"{name}.bias", n_out) if bias else None,
        Clip(*limits) if clip else None,
    )


def norm(name: str, width: int, *, centered: bool = True) -> Norm:
    bias = tensor(f"{name}.bias", width) if centered else None
    return Norm(tensor(f"{name}.weight", width), 1e-5, bias, centered=centered)


def encoder_spec(*, window: int | None = None, gated: bool = True, kind: str = "gelu", layers: int = 2) -> EncoderSpec:
    blocks = tuple(
        Block(
            mixer_norm=norm(f"{i}.norm1", HIDDEN),
            mixer=Attention(
                heads=HEADS,
                kv_heads=KV_HEADS,
                head_dim=HEAD_DIM,
                scale=HEAD_DIM**-0.5,
                rope=Rope(np.ones(6, np.float32)),
                window=window,
                q=linear(f"{i}.q", HEADS * HEAD_DIM, HIDDEN, clip=True),
                k=linear(f"{i}.k", KV_HEADS * HEAD_DIM, HIDDEN),
                v=linear(f"{i}.v", KV_HEADS * HEAD_DIM, HIDDEN),
                q_norm=norm(f"{i}.q_norm", HEAD_DIM, centered=False),
                value_norm=1e-5,
                o=linear(f"{i}.o", HIDDEN, HEADS * HEAD_DIM),
            ),
            feed_forward_norm=norm(f"{i}.norm2", HIDDEN),
            feed_forward=GatedMlp(
                linear(f"{i}.gate", WIDTH, HIDDEN) if gated else None,
                linear(f"{i}.up", WIDTH, HIDDEN),
                linear(f"{i}.down", HIDDEN, WIDTH, bias=False),
                Activation(kind),
            ),
            feed_forward_after=norm(f"{i}.after", HIDDEN, centered=False),
        )
        for i in range(layers)
    )
    chain = (norm("c.norm", 70), linear("c.in", HIDDEN, 70), Activation(kind), PlainNorm(HIDDEN, 1e-6))
    return EncoderSpec(model_type="test", hidden=HIDDEN, chains=(chain,), layers=blocks, rope_parts=2)


def values_of(one: Tensor) -> np.ndarray:
    rng = np.random.default_rng(sum(one.name.encode()))
    if one.name.endswith(("_min", "_max")):
        return np.array(-0.3 if one.name.endswith("min") else 0.4, np.float32)
    found = 0.4 * rng.standard_normal(one.shape)
    return (found + 1 if "norm" in one.name and one.name.endswith("weight") else found).astype(np.float32)


def read(one: Tensor) -> PackedWeight:
    return PackedWeight("fp32", one.shape, values_of(one))


# ---- the same in float64 ------------------------------------------------------------------------------


def normed(x: np.ndarray, one: Norm | None) -> np.ndarray:
    if one is None:
        return x
    if one.centered:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + one.epsilon) * values_of(one.weight)
    return x if one.bias is None else x + values_of(one.bias)


def applied(x: np.ndarray, one: Linear) -> np.ndarray:
    if one.clip is not None:
        x = x.clip(values_of(one.clip.input_min), values_of(one.clip.input_max))
    x = x @ values_of(one.weight).astype(np.float64).T
    x = x if one.bias is None else x + values_of(one.bias)
    return x if one.clip is None else x.clip(values_of(one.clip.output_min), values_of(one.clip.output_max))


def activated(x: np.ndarray, kind: str) -> np.ndarray:
    return {
        "silu": lambda: x / (1 + np.exp(-x)),
        "gelu": lambda: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
        "gelu_quick": lambda: x / (1 + np.exp(-1.702 * x)),
        "gelu_tanh": lambda: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    }[kind]()


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotate two parts of heads [rows, heads, head_dim], each half with half."""
    parts = []
    for part in range(2):
        quarter = HEAD_DIM // 4
        low, high = (x[..., (2 * part + i) * quarter : (2 * part + i + 1) * quarter] for i in (0, 1))
        c, s = (table[:, None, part * quarter : (part + 1) * quarter] for table in (cos, sin))
        parts += [low * c - high * s, high * c + low * s]
    return np.concatenate(parts, -1)


def block_of(x: np.ndarray, block: Block, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    a: Any = block.mixer
    m: Any = block.feed_forward
    y = normed(x, block.mixer_norm)
    q, k, v = (applied(y, one).reshape(len(x), -1, HEAD_DIM) for one in (a.q, a.k, a.v))
    q, k = rotated(normed(q, a.q_norm), cos, sin) * a.scale, rotated(k, cos, sin)
    v = v / np.sqrt((v * v).mean(-1, keepdims=True) + a.value_norm)
    k, v = (np.repeat(one, HEADS // KV_HEADS, 1) for one in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k)
    if a.window is not None:
        at = np.arange(len(x))
        scores = np.where(np.abs(at[:, None] - at) <= a.window, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + normed(applied(np.einsum("hij,jhd->ihd", weights, v).reshape(len(x), -1), a.o), block.mixer_after)
    y = normed(x, block.feed_forward_norm)
    inner = activated(applied(y, m.gate or m.up), m.activation.kind)
    inner = inner * applied(y, m.up) if m.gate is not None else inner
    return x + normed(applied(inner, m.down), block.feed_forward_after)


def inputs(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    angles = rng.uniform(0, 6, (rows, HEAD_DIM // 2))
    return tuple(
        one.astype(np.float32) for one in (rng.standard_normal((rows, HIDDEN)), np.cos(angles), np.sin(angles))
    )


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_quick", "gelu_tanh"])
@pytest.mark.parametrize("gated", [True, False])
def test_blocks_and_chains_are_those_of_numpy(kind, gated):
    spec = encoder_spec(kind=kind, gated=gated)
    encoder = NativeEncoder(spec, read, threads=2)
    x, cos, sin = inputs(45)
    found = encoder.layers(x, cos, sin, after=[1])
    wanted = block_of(x.astype(np.float64), spec.layers[0], cos, sin)
    close(found[1], wanted)
    close(found[2], block_of(wanted, spec.layers[1], cos, sin))
    rows = np.random.default_rng(1).standard_normal((300, 70)).astype(np.float32)
    first, second, _, _ = spec.chains[0]
    wanted = activated(applied(normed(rows.astype(np.float64), first), second), kind)
    close(encoder.chain(0, rows), wanted / np.sqrt((wanted * wanted).mean(-1, keepdims=True) + 1e-6))


@pytest.mark.parametrize("window", [0, 1, 7, 31, 200])
def test_rows_see_those_up_to_a_distance(window):
    """0 is the encoder's word for all rows."""
    spec = encoder_spec(window=window, layers=1)
    x, cos, sin = inputs(150)
    found = NativeEncoder(spec, read, threads=2).layers(x, cos, sin)[1]
    block = spec.layers[0]
    mixer: Any = replace(block.mixer, window=None if window == 0 else window)
    close(found, block_of(x.astype(np.float64), replace(block, mixer=mixer), cos, sin))


@pytest.mark.parametrize("window", [None, 20])
def test_rows_have_the_same_bits_on_every_isa_and_with_any_threads(monkeypatch, window):
    spec = encoder_spec(window=window)
    x, cos, sin = inputs(203)
    found = []
    for isa in available_isas():
        monkeypatch.setenv(ISA_VARIABLE, isa)
        found += [NativeEncoder(spec, read, threads=threads).layers(x, cos, sin)[2] for threads in (1, 2, 5)]
    assert all(np.array_equal(one, found[0]) for one in found)


def test_a_row_beyond_the_distance_changes_nothing():
    encoder = NativeEncoder(encoder_spec(window=10, layers=1), read, threads=2)
    x, cos, sin = inputs(100)
    other = x.copy()
    other[60:] += 1
    found, changed = encoder.layers(x, cos, sin)[1], encoder.layers(other, cos, sin)[1]
    assert np.array_equal(found[:50], changed[:50])
    assert not np.array_equal(found[50], changed[50])
    assert np.array_equal(found[:30], encoder.layers(x[:41], cos[:41], sin[:41])[1][:30])


def test_wrong_inputs_are_refused():
    encoder = NativeEncoder(encoder_spec(), read, threads=1)
    x, cos, sin = inputs(5)
    for call, message in (
        (lambda: encoder.layers(x[:, 1:], cos, sin), r"shape \[rows, 40\]"),
        (lambda: encoder.layers(x, cos[1:], sin), r"shape \[rows, 12\]"),
        (lambda: encoder.layers(x), "needs cosines and sines"),
        (lambda: encoder.layers(x[:0], cos[:0], sin[:0]), "an input has 0 rows"),
        (lambda: encoder.chain(1, x), "chain 1 does not exist"),
        (lambda: encoder.chain(0, x), r"shape \[rows, 70\]"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def other(**fields: Any) -> EncoderSpec:
    spec = encoder_spec(layers=1)
    block = spec.layers[0]
    mixer: Any = replace(block.mixer, **fields)
    return replace(spec, layers=(replace(block, mixer=mixer),))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (other(heads=3), "multiple of kv_heads"),
        (other(head_dim=20), "multiple of 8"),
        (other(window=-1), "must not be negative"),
        (other(softcap=1.0), "no attention with softcap"),
        (other(o=linear("o", HIDDEN, 3)), "o is 40 x 3; it must be 40 x 96"),
        (other(q_norm=norm("q", 7)), "over 7 values"),
        (replace(encoder_spec(), rope_parts=0), "rope_parts"),
        (replace(encoder_spec(), chains=((Activation("gelu"),),)), "a norm or a linear layer"),
        (replace(encoder_spec(), chains=((norm("a", 8), norm("b", 9)),)), "reads 9 values of 8"),
        (encoder_spec(kind="xielu"), "activation"),
    ],
)
def test_wrong_shapes_are_refused(spec, message):
    with pytest.raises(UnsupportedModelError, match=message):
        NativeEncoder(spec, read, threads=1)
