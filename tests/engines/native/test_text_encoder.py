"""The native encoder of texts by itself: compared with numpy, by bytes over batches, threads and instruction sets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.spec import Activation, Attention, Block, GatedMlp, Rope
from ipex_lookahead.engines.native import encoder as encoder_module
from ipex_lookahead.engines.native.core import ISA_VARIABLE, available_isas, native_core
from ipex_lookahead.engines.native.encoder import NativeTextEncoder
from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.formats import dequantize, quantize
from ipex_lookahead.formats.base import PackedWeight
from tests.engines.native.test_encoder import activated, applied, close, linear, norm, normed, read, tensor, values_of

HIDDEN, HEADS, HEAD_DIM, WIDTH, VOCAB, TYPES, POSITIONS = 48, 4, 16, 72, 60, 2, 90
SLOPES = (0.5, 0.25, 0.125, 0.0625)
LENGTHS = (1, 40, 7, 16, 17, 90, 2)


def rope(base: float) -> Rope:
    return Rope((base ** -(np.arange(HEAD_DIM // 2) / (HEAD_DIM / 2))).astype(np.float32))


def block(number: int, *, post_norm: bool, gated: bool, one: Rope | None, window: int | None, bias: bool) -> Block:
    name, kv = f"t{number}", 2 if one is not None else HEADS
    norms = [norm(f"{name}.norm{i}", HIDDEN, centered=True) for i in range(2)]
    before = [None, None] if post_norm else norms
    after = norms if post_norm else [None, None]
    return Block(
        mixer_norm=before[0] if number else None,
        mixer=Attention(
            heads=HEADS,
            kv_heads=kv,
            head_dim=HEAD_DIM,
            scale=HEAD_DIM**-0.5,
            rope=one,
            window=window,
            q=linear(f"{name}.q", HEADS * HEAD_DIM, HIDDEN, bias=bias),
            k=linear(f"{name}.k", kv * HEAD_DIM, HIDDEN, bias=bias),
            v=linear(f"{name}.v", kv * HEAD_DIM, HIDDEN, bias=bias),
            o=linear(f"{name}.o", HIDDEN, HEADS * HEAD_DIM, bias=bias),
        ),
        mixer_after=after[0],
        feed_forward_norm=before[1],
        feed_forward=GatedMlp(
            linear(f"{name}.gate", WIDTH, HIDDEN, bias=bias) if gated else None,
            linear(f"{name}.up", WIDTH, HIDDEN, bias=bias),
            linear(f"{name}.down", HIDDEN, WIDTH, bias=bias),
            Activation("gelu"),
        ),
        feed_forward_after=after[1],
    )


def bert(**other: Any) -> EncoderSpec:
    """Post-norm, tables of positions and types, biases."""
    given: dict[str, Any] = {
        "embedding": tensor("embedding", VOCAB, HIDDEN),
        "types": tensor("types", TYPES, HIDDEN),
        "positions": tensor("positions", POSITIONS, HIDDEN),
        "embedding_norm": norm("embedding.norm", HIDDEN),
        "layers": tuple(block(i, post_norm=True, gated=False, one=None, window=None, bias=True) for i in range(2)),
        "post_norm": True,
    }
    return EncoderSpec(model_type="test", hidden=HIDDEN, **given | other)


def modern() -> EncoderSpec:
    """Pre-norm except for the first mixer, gated, two ropes, a distance in every other layer, a final norm."""
    wide, near = rope(160000.0), rope(10000.0)
    layers = (
        block(0, post_norm=False, gated=True, one=wide, window=None, bias=False),
        block(1, post_norm=False, gated=True, one=near, window=5, bias=False),
    )
    final = norm("final.norm", HIDDEN, centered=False)
    embedding = tensor("embedding", VOCAB, HIDDEN)
    return EncoderSpec(
        model_type="test", hidden=HIDDEN, embedding=embedding, embedding_multiplier=1.5, layers=layers, final_norm=final
    )


def alibi() -> EncoderSpec:
    return bert(positions=None, slopes=SLOPES)


SPECS = {"bert": bert, "modern": modern, "alibi": alibi}


def texts(lengths: tuple[int, ...] = LENGTHS) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    rng = np.random.default_rng(3)
    ids = [rng.integers(0, VOCAB, n) for n in lengths]
    types = [None if n % 3 == 0 else (np.arange(n) > n // 2).astype(np.int64) for n in lengths]
    return ids, types


# ---- the same in float64 ------------------------------------------------------------------------------


def turned(x: np.ndarray, one: Rope) -> np.ndarray:
    angles = np.arange(len(x))[:, None] * one.frequencies.astype(np.float64)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def added(x: np.ndarray, branch: np.ndarray, after: Any, post_norm: bool) -> np.ndarray:
    return normed(x + branch, after) if post_norm else x + normed(branch, after)


def block_of(x: np.ndarray, one: Block, spec: EncoderSpec) -> np.ndarray:
    a: Any = one.mixer
    m: Any = one.feed_forward
    y = normed(x, one.mixer_norm)
    q, k, v = (applied(y, part).reshape(len(x), -1, HEAD_DIM) for part in (a.q, a.k, a.v))
    if a.rope is not None:
        q, k = turned(q, a.rope), turned(k, a.rope)
    k, v = (np.repeat(part, HEADS // a.kv_heads, 1) for part in (k, v))
    scores = np.einsum("ihd,jhd->hij", q * a.scale, k)
    distance = np.abs(np.arange(len(x))[:, None] - np.arange(len(x)))
    if spec.slopes:
        scores = scores - np.array(spec.slopes)[:, None, None] * distance
    if a.window is not None:
        scores = np.where(distance <= a.window, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    merged = np.einsum("hij,jhd->ihd", weights, v).reshape(len(x), -1)
    x = added(x, applied(merged, a.o), one.mixer_after, spec.post_norm)
    y = normed(x, one.feed_forward_norm)
    inner = activated(applied(y, m.gate or m.up), m.activation.kind)
    inner = inner * applied(y, m.up) if m.gate is not None else inner
    return added(x, applied(inner, m.down), one.feed_forward_after, spec.post_norm)


def rows_of(spec: EncoderSpec, ids: np.ndarray, types: np.ndarray | None) -> np.ndarray:
    assert spec.embedding is not None
    x = values_of(spec.embedding)[ids].astype(np.float64) * spec.embedding_multiplier
    if spec.types is not None:
        x = x + values_of(spec.types)[np.zeros_like(ids) if types is None else types]
    if spec.positions is not None:
        x = x + values_of(spec.positions)[: len(ids)]
    x = normed(x, spec.embedding_norm)
    for one in spec.layers:
        x = block_of(x, one, spec)
    return normed(x, spec.final_norm)


@pytest.mark.parametrize("name", SPECS)
def test_rows_are_those_of_numpy(name):
    spec = SPECS[name]()
    ids, types = texts()
    types = types if spec.types is not None else [None] * len(ids)
    found = NativeTextEncoder(spec, read, threads=2).rows(ids, types)
    for number, one in enumerate(found):
        close(one, rows_of(spec, ids[number], types[number]))


@pytest.mark.parametrize("name", SPECS)
def test_a_text_has_the_same_bits_in_any_company_on_any_isa_with_any_threads(monkeypatch, name):
    spec = SPECS[name]()
    ids, _ = texts()
    alone = [NativeTextEncoder(spec, read, threads=1).rows([one])[0].tobytes() for one in ids]
    for isa in available_isas():
        monkeypatch.setenv(ISA_VARIABLE, isa)
        for threads in (1, 2, 5):
            encoder = NativeTextEncoder(spec, read, threads=threads)
            assert [one.tobytes() for one in encoder.rows(ids)] == alone
            assert [one.tobytes() for one in encoder.rows(ids[::-1])] == alone[::-1]
            assert [one.tobytes() for one in encoder.rows([*ids, *ids] * 4)] == [*alone, *alone] * 4


def low_bit_read(name: str) -> Any:
    def read_one(one: Any) -> PackedWeight:
        weight = read(one)
        return quantize(weight, name, 32) if one.is_matrix and not one.name.startswith("final") else weight

    return read_one


@pytest.mark.parametrize("name", ["bf16", "fp16", "sym_int4", "asym_int4", "sym_int8", "nf4", "fp8_e4m3"])
def test_low_bit_texts_have_the_same_bits_everywhere_and_are_close_to_floats(monkeypatch, name):
    """Tables are in the format too, as in GGUF files."""
    spec = bert()
    ids, types = texts()
    monkeypatch.setenv(ISA_VARIABLE, "scalar")
    alone = NativeTextEncoder(spec, low_bit_read(name), threads=1)
    wanted = [alone.rows([one], [of])[0].tobytes() for one, of in zip(ids, types, strict=True)]
    for isa in available_isas():
        monkeypatch.setenv(ISA_VARIABLE, isa)
        for threads in (1, 3):
            found = NativeTextEncoder(spec, low_bit_read(name), threads=threads).rows(ids, types)
            assert [one.tobytes() for one in found] == wanted, (isa, threads)

    def dequantized(one: Any) -> PackedWeight:
        weight = low_bit_read(name)(one)
        return PackedWeight("fp32", one.shape, dequantize(weight).astype(np.float32)) if one.is_matrix else weight

    floats = NativeTextEncoder(spec, dequantized, threads=2).rows(ids, types)
    for one, other in zip(found, floats, strict=True):
        cosine = (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)
        assert cosine.min() > 0.995


@pytest.mark.parametrize("name", SPECS)
def test_slices_of_any_size_give_the_same_bits(name):
    spec = SPECS[name]()
    encoder = NativeTextEncoder(spec, read, threads=2)
    ids, _ = texts()
    whole = np.concatenate(encoder.rows(ids))
    core = native_core()
    lengths = np.array([len(one) for one in ids], np.int32)
    for work in (1, 10**5, 10**7):
        one = core.EncoderPass.texts(encoder._raw, np.concatenate(ids).astype(np.int32), lengths, None)
        slices = 0
        while one.layer < len(spec.layers):
            one.advance(len(spec.layers), work)
            slices += 1
        assert np.asarray(one.rows(encoder._raw)).tobytes() == whole.tobytes()
        assert (slices > 10) == (work < 10**7)


def test_many_texts_are_divided_between_passes(monkeypatch):
    """A part has at most 50 tokens, or one text of 90."""
    encoder = NativeTextEncoder(bert(), read, threads=2)
    ids, types = texts()
    whole = encoder.rows(ids, types)
    monkeypatch.setattr(encoder_module, "PASS_ROWS", 50)
    passes: list[int] = []
    begun = encoder._pass
    monkeypatch.setattr(encoder, "_pass", lambda *given: passes.append(len(given[0])) or begun(*given))
    assert [one.tobytes() for one in encoder.rows(ids, types)] == [one.tobytes() for one in whole]
    assert passes == [3, 2, 1, 1]


def test_no_text_is_no_rows():
    assert NativeTextEncoder(bert(), read, threads=1).rows([]) == []


@pytest.mark.parametrize(
    ("ids", "types", "message"),
    [
        ([[1, 2], []], None, "0 tokens"),
        ([[1, VOCAB]], None, "token 60 has no row: the table has 60"),
        ([[1, -1]], None, "from -1 to 1"),
        ([[1, 2**32]], None, "from 1 to 4294967296"),
        ([[0.5, 1.0]], None, "float64"),
        ([[1, 2]], [[0, 2]], "token type 2 has no row: the table has 2"),
        ([[1, 2]], [[0]], "1 token types"),
        ([[1] * 91], None, "91 tokens; the encoder has positions for 90"),
    ],
)
def test_wrong_texts_are_refused(ids, types, message):
    encoder = NativeTextEncoder(bert(), read, threads=1)
    given = None if types is None else [np.array(one) for one in types]
    with pytest.raises(InputError, match=message):
        encoder.rows([np.array(one) for one in ids], given)


def test_an_encoder_of_images_takes_no_texts():
    encoder = NativeTextEncoder(bert(embedding=None), read, threads=1)
    with pytest.raises(InputError, match="no embedding"):
        encoder.rows([np.array([1])])


def with_rope(one: Rope) -> EncoderSpec:
    spec = modern()
    mixer: Any = spec.layers[0].mixer
    return replace(spec, layers=(replace(spec.layers[0], mixer=replace(mixer, rope=one)),))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (bert(slopes=(1.0,)), "one number per head"),
        (bert(slopes=(0.5, 0.25, 2.0, 0.1)), "from 0 to 1"),
        (bert(layers=modern().layers), "norms after both branches"),
        (with_rope(Rope(np.ones(3, np.float32))), "whole heads"),
        (with_rope(Rope(np.ones(HEAD_DIM // 2, np.float32), interleaved=True)), "plain halves"),
        (bert(final_norm=norm("f", 7)), "over 7 values"),
        (bert(embedding_multiplier=float("nan")), "finite"),
    ],
)
def test_wrong_shapes_are_refused(spec, message):
    with pytest.raises(UnsupportedModelError, match=message):
        NativeTextEncoder(spec, read, threads=1)
