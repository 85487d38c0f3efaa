"""Low-rank adapters in the core: exact however rows are served, and right against merged float32 weights."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import model_types, spec_for
from ipex_lookahead.architectures.adapter import Adapter, AppliedAdapter, LowRank, adaptable
from ipex_lookahead.architectures.spec import ModelSpec, named_tensors
from ipex_lookahead.engines.api import Batch, OutputRequest, TakesAdapters
from ipex_lookahead.engines.native.core import available_isas
from ipex_lookahead.engines.native.decoder import empty_decoder
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.errors import InputError, UnsupportedModelError
from tests.gates import cases
from tests.support.adapters import merged, random_adapter
from tests.support.family_configs import read_config
from tests.support.family_table import variants
from tests.support.hybrids import HYBRIDS, hybrid
from tests.support.native import chain, ids_of, load
from tests.support.quantized_folders import ORDERED, write_quantized
from tests.support.specs import NAMED, make_spec, native_engine, random_native_switches, random_weights
from tests.support.tiny_families import config_of

ISAS = available_isas()
FORMATS = ("fp32", "bf16", "sym_int4", "asym_int4", "sym_int8")
WIDE = {"hidden": 1100, "intermediate": 530, "heads": 2, "kv_heads": 1, "head_dim": 32}
"""More inputs than one part of A has."""


def served(engine: NativeEngine, tokens: np.ndarray, applied: AppliedAdapter | None, sizes: list[int]) -> list[bytes]:
    """Each token's logits as a chain in chunks of those sizes, going round."""
    cache, at = engine.new_cache(), 0
    rows: list[np.ndarray] = []
    while at < len(tokens):
        chunk = tokens[at : at + sizes[len(rows) % len(sizes)]]
        batch = Batch([cache], [len(chunk)], chunk, chain(len(chunk)), OutputRequest(logits=True), (), (applied,))
        logits = engine.forward(batch).logits
        assert logits is not None
        rows.append(logits)
        cache.keep(range(len(chunk)))
        at += len(chunk)
    return [row.tobytes() for row in np.concatenate(rows)]


def floats(rows: list[bytes]) -> np.ndarray:
    return np.array([np.frombuffer(row, np.float32) for row in rows])


def distance(one: list[bytes], other: list[bytes]) -> float:
    return float(np.abs(floats(one) - floats(other)).max() / floats(other).std())


def check_exact(spec: ModelSpec, chance: random.Random, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """The oracle is the scalar kernels, one thread, token by token."""
    weights = random_weights(spec, chance.randrange(1000))
    low_bit, seed = chance.choice(FORMATS), chance.randrange(1000)
    adapters = [
        random_adapter(spec, seed, share=0.4),
        random_adapter(spec, seed + 1, ranks=(3, 70)),
        random_adapter(spec, seed + 2, share=0.1),
    ]
    uses = [
        AppliedAdapter(adapters[0]), AppliedAdapter(adapters[0], -0.3), None, AppliedAdapter(adapters[1]),
        AppliedAdapter(adapters[2]),
    ]  # fmt: skip

    def made(isa: str, threads: int) -> NativeEngine:
        monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", isa)
        engine = native_engine(spec, weights, low_bit, threads=threads)
        for adapter in adapters:
            engine.load_adapter(adapter)
        return engine

    scalar = made("scalar", 1)
    tokens = ids_of(scalar, rows, seed)
    expected = [served(scalar, tokens, use, [1]) for use in uses]
    assert len({rows[-1] for rows in expected}) == len(uses)
    for isa in ISAS:
        engine = made(isa, chance.choice((1, 2, 3)))
        for use, own in zip(uses, expected, strict=True):
            for sizes in ([rows], [1, 7, 40, 16, 17], [chance.randrange(1, 20)]):
                assert served(engine, tokens, use, sizes) == own, (isa, sizes)
        check_together(engine, tokens, uses, expected, chance)


def check_together(
    engine: NativeEngine, tokens: np.ndarray, uses: list[Any], expected: list[list[bytes]], chance: random.Random
) -> None:
    """Rows of sequences with different adapters in one step, in any order, few and many of them."""
    for most in (3, 30):
        order = [chance.randrange(len(uses)) for _ in range(7)]
        counts = [chance.randrange(1, min(most, len(tokens)) + 1) for _ in order]
        ids = np.concatenate([tokens[:count] for count in counts])
        parents = np.concatenate([chain(count) for count in counts])
        caches = [engine.new_cache() for _ in order]
        batch = Batch(caches, counts, ids, parents, OutputRequest(logits=True), (), [uses[i] for i in order])
        logits = engine.forward(batch).logits
        assert logits is not None
        found = [row.tobytes() for row in logits]
        assert found == [row for i, count in zip(order, counts, strict=True) for row in expected[i][:count]]


@pytest.mark.parametrize("name", sorted({*NAMED, "wide"}))
@pytest.mark.rotating(3)
def test_named_models_are_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = WIDE if name == "wide" else NAMED[name]
    check_exact(make_spec(**options), random.Random(name), monkeypatch, 40)


@pytest.mark.parametrize("seed", range(cases(3, 25)))
def test_any_switches_together_are_exact(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    check_exact(make_spec(**random_native_switches(chance)), chance, monkeypatch, chance.randrange(5, 60))


MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "wide": WIDE,
    "one head": {"layers": 1, "parts": "mixer"},
    "mlp": {"layers": 1, "parts": "feed_forward"},
    "no gate": {"gated": False, "parallel": True, "rope": "none"},
    "gemma2": NAMED["gemma2"],
    "biases": {"bias": "qkvogud", "tied": False},
    "latent": {"latent": (16, 8, 8, 8, 24)},
    "per layer": {"per_layer": 5, "attention_gate": True},
}


@pytest.mark.parametrize("name", MODELS)
def test_an_adapter_is_what_its_merged_weights_are(name: str) -> None:
    """In float32: the only differences are roundings, of keys and values to float16 too."""
    spec = make_spec(**MODELS[name])
    weights = random_weights(spec)
    for seed, scale in ((0, 1.0), (1, 0.5)):
        applied = AppliedAdapter(random_adapter(spec, seed, share=0.7), scale)
        engine = native_engine(spec, weights)
        tokens = ids_of(engine, 30)
        engine.load_adapter(applied.adapter)
        found, plain = (served(engine, tokens, one, [30]) for one in (applied, None))
        expected = served(native_engine(spec, merged(weights, applied)), tokens, None, [30])
        close = 1e-5 if MODELS[name].get("parts") == "feed_forward" else 3e-3  # float16 keys and values round apart
        assert distance(found, expected) < close
        assert distance(found, plain) > 0.1


@pytest.mark.parametrize("low_bit", FORMATS)
def test_an_adapter_with_b_zero_changes_no_bit(low_bit: str) -> None:
    """Not in its own rows, and an adapter of another sequence changes none either."""
    spec = make_spec()
    engine = native_engine(spec, random_weights(spec), low_bit)
    tokens = ids_of(engine, 30)
    plain = served(engine, tokens, None, [30])
    made = random_adapter(spec)
    zero = Adapter("zero", {k: LowRank(one.a, 0 * one.b, one.scale) for k, one in made.matrices.items()})
    for adapter in (made, zero):
        engine.load_adapter(adapter)
    assert served(engine, tokens, AppliedAdapter(zero), [30]) == plain
    assert served(engine, tokens, AppliedAdapter(zero), [7]) == plain
    assert served(engine, tokens, AppliedAdapter(made, 0.0), [7]) == plain
    assert served(engine, tokens, AppliedAdapter(made), [30])[-1] != plain[-1]


def test_loading_twice_unloading_and_what_is_refused() -> None:
    spec = make_spec(experts=[0, 3], used=[0, 2])
    engine = native_engine(spec, random_weights(spec))
    assert isinstance(engine, TakesAdapters)
    assert "adapters" not in engine.describe()
    made, other = random_adapter(spec), random_adapter(spec, 1)
    engine.load_adapter(made)
    before = engine.adapter_bytes
    assert before >= made.nbytes
    engine.load_adapter(Adapter("again", made.matrices))
    assert engine.adapter_bytes == before
    assert engine.describe()["adapters"] == 1
    tokens = ids_of(engine, 3)
    with pytest.raises(InputError, match="adapter a is not loaded"):
        served(engine, tokens, AppliedAdapter(other), [3])
    expert = LowRank(np.zeros((2, 64), np.float32), np.zeros((96, 2), np.float32), 1.0)
    with pytest.raises(UnsupportedModelError, match="experts of a mixture take no adapter"):
        engine.load_adapter(Adapter("moe", {"layers.1.experts.0.up.weight": expert}))
    with pytest.raises(ValueError, match=r"weight layers\.1\.feed_forward\.router\.weight takes no adapter"):
        engine.decoder.load_adapter([("layers.1.feed_forward.router.weight", expert.a, expert.b, 1.0)])
    stranger, raw = native_engine(spec, random_weights(spec)).decoder, engine._adapters[made.digest]
    with pytest.raises(ValueError, match="an adapter belongs to another model"):
        stranger.forward([stranger.new_cache()], [1], [0], tokens[:1], chain(1), None, False, 1, [], None, False, None,
                         False, [raw], [1.0])  # fmt: skip
    engine.unload_adapter(made)
    engine.unload_adapter(made)
    assert engine.adapter_bytes == 0
    with pytest.raises(InputError, match="adapter a is not loaded"):
        served(engine, tokens, AppliedAdapter(made), [3])


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_are_exact_and_go_back_over_rejected_rows(name: str) -> None:
    engine = hybrid(name)
    adapter = random_adapter(engine.spec)
    engine.load_adapter(adapter)
    use = AppliedAdapter(adapter, 0.7)
    tokens = ids_of(engine, 45)
    expected = served(engine, tokens, use, [1])
    assert served(engine, tokens, use, [45]) == served(engine, tokens, use, [7, 1, 20]) == expected
    assert served(engine, tokens, None, [45])[0] != expected[0]
    cache, at = engine.new_cache(), 0
    while at + 5 < len(tokens):  # drafts, of which two rows are kept
        batch = Batch([cache], [5], tokens[at : at + 5], chain(5), OutputRequest(logits=True), (), (use,))
        logits = engine.forward(batch).logits
        assert logits is not None
        assert [row.tobytes() for row in logits] == expected[at : at + 5]
        cache.keep([0, 1])
        at += 2


def test_inputs_in_another_order_meet_the_same_columns_of_a(tmp_path: Path) -> None:
    """Act order: the core reads a matrix's inputs in the file's order, and an adapter's columns are in the model's."""
    kind = next(one for one in ORDERED if "apart" not in one.name)
    values = write_quantized(tmp_path, kind)
    engine = load(tmp_path)
    assert any(weight.order is not None for _, weight in engine.weights())
    plain = {name: values[name] for name in (one.name for one in engine.spec.tensors())}
    use = AppliedAdapter(random_adapter(engine.spec))
    engine.load_adapter(use.adapter)
    tokens = ids_of(engine, 20)
    found = served(engine, tokens, use, [20])
    assert served(engine, tokens, use, [1]) == found
    close, far = (
        distance(found, served(native_engine(engine.spec, merged(plain, one)), tokens, None, [20]))
        for one in (use, AppliedAdapter(use.adapter, 0.0))
    )
    assert 10 * close < far  # activations are quantized


@pytest.mark.parametrize("model_type", model_types())
def test_the_core_takes_what_is_adaptable_of_every_family(tmp_path: Path, model_type: str) -> None:
    for variant in variants(model_type):
        path = tmp_path / "config.json"
        path.write_text(config_of(model_type, variant).to_json_string(use_diff=False), encoding="utf-8")
        spec = spec_for(read_config(path))
        changes = [
            (path, np.zeros((1, tensor.shape[1]), np.float32), np.zeros((tensor.shape[0], 1), np.float32), 1.0)
            for path, tensor in named_tensors(spec)
            if path in adaptable(spec).values()
        ]
        assert changes
        empty_decoder(spec, 1, "fp16").load_adapter(changes)
