"""Layers divided between the CPU and a device: the native engine's logits, byte for byte, wherever the division is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead import AutoModelForCausalLM, InputError, LookaheadConfig
from ipex_lookahead.architectures.spec import ModelSpec, Tensor
from ipex_lookahead.controller.kept_costs import key_of
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.identity import identity
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.load import load as load_native
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.errors import BusyError, ContextLengthError, EngineError
from ipex_lookahead.formats import quantize
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Service
from tests.engines.opencl.test_engine import in_pieces, sorted_weights
from tests.engines.opencl.test_load import loaded_or_refused
from tests.support.byte_tokenizer import VOCAB, byte_tokenizer
from tests.support.cache_walk import Plain, walk
from tests.support.family_engines import each, some
from tests.support.family_table import CONTEXT, Variant
from tests.support.native import chain, ids_of, run
from tests.support.specs import NAMED, make_spec, random_switches, random_weights
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_families import build, text, write_folder


def divided(
    spec: ModelSpec, device: Device, low_bit: str = "fp32", kv_cache: str = "fp16", seed: int = 0
) -> tuple[NativeEngine, list[SplitEngine]]:
    """The native engine, and one for each number of layers on the device that is not all."""
    weights = random_weights(spec, seed)

    def matrix(tensor: Tensor) -> PackedWeight:
        plain = PackedWeight("fp32", tensor.shape, weights[tensor.name])
        return quantize(plain, "fp32" if "router" in tensor.name else low_bit)

    def vector(tensor: Tensor) -> Any:
        return weights[tensor.name]

    native = NativeEngine.build(spec, low_bit, matrix, vector, threads=1, kv_cache=kv_cache)
    return native, [
        SplitEngine.build(spec, low_bit, matrix, vector, device, layers, kv_cache, threads=1)
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


@each(some()[::3])
@pytest.mark.rotating(18)
def test_checkpoints_of_families(tmp_path: Path, model_type: str, variant: Variant) -> None:
    """Every third one: the same logits, and the weights as they are in the file."""
    folder = write_folder(tmp_path / "folder", build(model_type, variant))
    given_ = {"kv_cache": "int8" if variant.gguf else "fp16", "threads": 1, "max_context": CONTEXT}
    native = load_native(LoadRequest(folder, **given_)).engine
    tokens = text(build(model_type, variant))
    expected = run(native, native.new_cache(), tokens).tobytes()
    for layers in range(1, len(native.spec.layers)):
        engine = loaded_or_refused(LoadRequest(folder, gpu_layers=layers, **given_), model_type)
        if engine is None:
            return
        assert isinstance(engine, SplitEngine)
        assert run(engine, engine.new_cache(), tokens).tobytes() == expected
        pairs = zip(sorted_weights(engine), sorted_weights(native), strict=True)
        for (name, one), (other_name, other) in pairs:
            assert name == other_name
            assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], name


@pytest.mark.timeout(900)
def test_the_embedded_models_answers() -> None:
    """30 layers, 11 of them on the device: greedy and sampled, alone and in a batch, plain and with lookahead."""
    native = AutoModelForCausalLM.from_pretrained("default", engine="native", progress=False)
    ours = AutoModelForCausalLM.from_pretrained("default", engine="opencl", gpu_layers=11, progress=False)
    assert ours.engine.describe()["gpu_layers"] == 11
    ids = torch.tensor([native.tokenizer.encode("The capital of France is Paris. The capital of Italy is")])
    batch = torch.cat([ids, ids.flip(1)])
    for tokens in (ids, batch):
        for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 0.8, "seed": 5}):
            expected = native.generate(tokens, max_new_tokens=24, **sampling)
            for lookahead in (None, LookaheadConfig("auto", 4, adaptive=False)):
                assert torch.equal(ours.generate(tokens, max_new_tokens=24, lookahead=lookahead, **sampling), expected)
    assert ours(ids).logits.numpy().tobytes() == native(ids).logits.numpy().tobytes()


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


def test_bad_steps_are_refused_and_nothing_is_lost(device: Device) -> None:
    native, (engine,) = divided(make_spec(), device)
    tokens = ids_of(native, 60)
    cache, other = engine.new_cache(), native.new_cache()
    for one, own in ((engine, cache), (native, other)):
        run(one, own, tokens)
        own.keep(range(60))
    good: dict[str, Any] = {"caches": [cache], "counts": [2], "tokens": tokens[:2], "parents": chain(2)}
    for changed in (
        {"tokens": np.array([1, 96], np.int32)},
        {"tokens": [1, 2]},
        {"parents": np.array([-1, 1], np.int32)},
        {"counts": [1]},
        {"counts": [1, 1], "caches": [cache, cache]},
        {"caches": [other]},
        {"caches": None},
        {"caches": []},
        {"wants": OutputRequest(np.array([2], np.int32))},
        {"wants": OutputRequest(top=65)},
        {"wants": OutputRequest(hidden=(1,))},
        {"wants": OutputRequest(timings=True)},
    ):
        with pytest.raises(InputError):
            engine.forward(Batch(**{**good, **changed}))
    with pytest.raises(ContextLengthError, match="position 512 is beyond the context of 512"):
        engine.forward(Batch([cache], [453], np.zeros(453, np.int32), chain(453)))
    for rows in ([1], [0, 2], "x", None):
        with pytest.raises(InputError):
            cache.keep(rows)
    for length in (61, -1, "x"):
        with pytest.raises(InputError):
            cache.crop(length)
    with cache.claim("a test"), pytest.raises(BusyError, match="in use by another thread"):
        run(engine, cache, tokens[:1])
    assert cache.length == 60
    assert run(engine, cache, tokens[:5]).tobytes() == run(native, other, tokens[:5]).tobytes()


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


def test_a_service_gives_each_caller_the_native_engines_tokens(tmp_path: Path) -> None:
    """Several at a time, with and without lookahead, over a prefix that is kept between them."""
    folder = write_tiny_llama(tmp_path, vocab=VOCAB, layers=3, context=512)
    byte_tokenizer().save_pretrained(folder)
    native = load_text_model(str(folder), low_bit="sym_int4", engine="native", threads=1, progress=False)
    ours = load_text_model(str(folder), low_bit="sym_int4", engine="opencl", gpu_layers=2, threads=1, progress=False)
    assert isinstance(ours.engine, SplitEngine)
    start = list(range(3, 90))
    prompts = [[*start, *range(5, 5 + n)] for n in (3, 9, 30)]
    for lookahead in (None, "auto"):
        service = Service(ours, slots=3, queue=8)
        for _ in range(2):
            streams = [service.stream(prompt, SamplingParams(20), lookahead=lookahead) for prompt in prompts]
            for prompt, events in zip(prompts, streams, strict=True):
                tokens = [token for event in events for token in event.tokens]
                assert tokens == native.generate(prompt, SamplingParams(20))
        assert service.cached_tokens > 0
        service.close()
