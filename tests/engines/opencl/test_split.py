"""Layers divided between the CPU and a device: the native engine's logits, byte for byte, wherever the division is."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead import InputError
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.controller.kept import key_of
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.identity import identity
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.errors import EngineError
from tests.engines.opencl.test_engine import in_pieces
from tests.support.cache_walk import Plain, walk
from tests.support.native import chain, ids_of, run
from tests.support.specs import NAMED, make_spec, random_switches, random_weights, reader


def divided(
    spec: ModelSpec, device: Device, low_bit: str = "fp32", kv_cache: str = "fp16", seed: int = 0
) -> tuple[NativeEngine, list[SplitEngine]]:
    """The native engine, and one for each number of layers on the device that is not all."""
    read = reader(random_weights(spec, seed), low_bit)
    native = NativeEngine.build(spec, low_bit, read, threads=1, kv_cache=kv_cache)
    return native, [
        SplitEngine.build(spec, low_bit, read, device, layers, kv_cache, threads=1)
        for layers in range(1, len(spec.layers))
    ]


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.rotating(24)
def test_any_division_of_a_families_layers(device: Device, name: str, kv_cache: str) -> None:
    low_bit = "fp16" if "hidden" in NAMED[name] else "sym_int4"
    native, engines = divided(make_spec(**{**NAMED[name], "layers": 3}), device, low_bit, kv_cache)
    tokens = ids_of(native, 300, seed=1)
    expected = run(native, native.new_cache(), tokens)
    assert len(engines) == 2
    for engine in engines:
        for sizes in ([300], [1, 16, 3, 17, 100]):
            assert in_pieces(engine, tokens, sizes).tobytes() == expected.tobytes(), sizes


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chance=st.randoms(use_true_random=False), seed=st.integers(0, 1000), rows=st.integers(1, 90))
def test_any_switches_together(device: Device, chance: random.Random, seed: int, rows: int) -> None:
    spec = make_spec(**random_switches(chance))
    native, engines = divided(spec, device, kv_cache=chance.choice(("fp16", "int8")), seed=seed)
    tokens = ids_of(native, rows, seed)
    sizes = [chance.randint(1, 40) for _ in range(5)]
    for engine in engines:
        assert in_pieces(engine, tokens, sizes).tobytes() == run(native, native.new_cache(), tokens).tobytes()


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_walks_over_caches(device: Device, kv_cache: str) -> None:
    """Keep, crop, fork, trees and several sequences at once; plain decoding is the native engine's."""
    native, engines = divided(make_spec(vocab=40, layers=2, window=[9, None]), device, kv_cache=kv_cache)
    plain = Plain(native)
    for seed in range(6):
        walk(engines[0], seed, steps=12, plain=plain, longest=90)


def test_what_is_counted_is_the_native_engines(device: Device) -> None:
    native, engines = divided(make_spec(layers=3, experts=[0, 4, 3], used=[0, 2, 1]), device, "sym_int4")
    tokens = ids_of(native, 20)
    expected = native.forward(Batch([native.new_cache()], [20], tokens, chain(20)))
    facts = native.describe()
    for layers, engine in enumerate(engines, 1):
        output = engine.forward(Batch([engine.new_cache()], [20], tokens, chain(20)))
        assert (output.experts, output.argmax.tolist()) == (expected.experts, expected.argmax.tolist())
        ours = engine.describe()
        assert (ours["experts"], ours["gpu_layers"]) == (facts["experts"], layers)
        assert ours["kv_bytes_per_token"] == facts["kv_bytes_per_token"]
        assert facts["step_bytes"] < ours["step_bytes"] < ours["weight_bytes"]
        assert facts["weight_bytes"] < ours["weight_bytes"]  # a tied embedding is there twice
    assert len({key_of(identity(engine)) for engine in engines}) == 2


def test_a_step_that_fails_on_the_device_leaves_nothing_to_keep(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, (engine,) = divided(make_spec(), device)
    tokens, cache, other = ids_of(native, 20), engine.new_cache(), native.new_cache()
    for one, own in ((engine, cache), (native, other)):
        run(one, own, tokens)
        own.keep(range(20))
    with monkeypatch.context() as patch:
        patch.setattr(engine._device._decoder, "run", lambda *_: (_ for _ in ()).throw(EngineError("lost")))
        with pytest.raises(EngineError, match="lost"):
            run(engine, cache, tokens[:3])
    with pytest.raises(InputError, match="row 0 is not one of the last step's 0 rows"):
        cache.keep([0])
    assert cache.cpu.length == cache.device.length == 20
    assert run(engine, cache, tokens[:3]).tobytes() == run(native, other, tokens[:3]).tobytes()


def test_where_a_window_has_moved_on_both_go_back_to_the_beginning(device: Device) -> None:
    native, (engine,) = divided(make_spec(context=3000, window=5), device)
    tokens, cache = ids_of(native, 2000), engine.new_cache()
    for at in range(0, 2000, 400):
        rows = np.zeros(0, np.int32)
        engine.forward(Batch([cache], [400], tokens[at : at + 400], chain(400), OutputRequest(rows)))
        cache.keep(range(400))
    assert cache.crop(1900) == cache.cpu.length == cache.device.length == 1900
    assert cache.crop(500) == cache.cpu.length == cache.device.length == 0
    assert run(engine, cache, tokens[:9]).tobytes() == run(native, native.new_cache(), tokens[:9]).tobytes()
