"""Routed experts in the native core, the rest on a device: the native engine's logits, byte for byte."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.controller.kept import key_of
from ipex_lookahead.engines.api import Batch
from ipex_lookahead.engines.identity import identity
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.load import load as load_native
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.load import load
from ipex_lookahead.engines.opencl.memory import measured
from ipex_lookahead.engines.opencl.placement import SHARE, Placement, choose
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.errors import EngineError, InputError, OutOfMemoryError
from tests.engines.opencl.test_engine import in_pieces, sorted_weights
from tests.engines.opencl.test_memory import of
from tests.support.cache_walk import Plain, walk
from tests.support.family_table import CONTEXT, Variant
from tests.support.native import chain, ids_of, run
from tests.support.specs import NAMED, make_spec, random_switches, random_weights, reader
from tests.support.tiny_families import build, text, write_folder

PLAIN = Variant("plain")
SPECS = {name: {**options, "layers": 3} for name, options in NAMED.items() if "experts" in options}


def divided(
    spec: ModelSpec, device: Device, cpu_moe: int, low_bit: Any = "fp32", kv_cache: str = "fp16", seed: int = 0
) -> tuple[NativeEngine, OpenClEngine]:
    """The native engine, and one with the experts of the first layers in the core."""
    read = reader(random_weights(spec, seed), low_bit)
    label = low_bit if isinstance(low_bit, str) else "mixed"
    native = NativeEngine.build(spec, label, read, threads=1, kv_cache=kv_cache)
    return native, OpenClEngine.build(spec, label, read, device, kv_cache, threads=1, cpu_moe=cpu_moe)


@pytest.mark.parametrize("low_bit", ["fp16", "sym_int4"])
@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.rotating(10)
def test_any_number_of_layers(device: Device, name: str, kv_cache: str, low_bit: str) -> None:
    spec = make_spec(**SPECS[name])
    for cpu_moe in (1, 3):
        native, engine = divided(spec, device, cpu_moe, low_bit, kv_cache)
        tokens = ids_of(native, 120, seed=1)
        expected = run(native, native.new_cache(), tokens)
        for sizes in ([120], [1, 16, 3, 17, 40]):
            assert in_pieces(engine, tokens, sizes).tobytes() == expected.tobytes(), (cpu_moe, sizes)


def test_experts_in_several_formats(device: Device) -> None:
    """Those on the CPU, and those on the device; and the weights come back as they were."""
    formats = {"experts.0.up": "sym_int8", "experts.1": "q6_k", "down": "fp16"}
    spec = make_spec(experts=4, used=2, hidden=256, intermediate=288, head_dim=64, bias="gudr", layers=2)
    native, engine = divided(
        spec, device, 1, lambda t: next((low for part, low in formats.items() if part in t.name), "sym_int4")
    )
    tokens = ids_of(native, 40)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for pieces in ([40], [1, 5]):
        assert in_pieces(engine, tokens, pieces).tobytes() == expected
    for (key, one), (other_key, other) in zip(sorted_weights(engine), sorted_weights(native), strict=True):
        assert key == other_key
        assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], key


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chance=st.randoms(use_true_random=False), seed=st.integers(0, 1000), rows=st.integers(1, 90))
def test_any_switches_together(device: Device, chance: random.Random, seed: int, rows: int) -> None:
    drawn = random_switches(chance)
    drawn["experts"] = [chance.choice((0, 1, 3, 8)) for _ in range(drawn["layers"])]
    drawn["used"] = [min(n, chance.choice((1, 2, 3))) for n in drawn["experts"]]
    spec = make_spec(**drawn)
    native, engine = divided(
        spec, device, chance.randint(1, drawn["layers"]), kv_cache=chance.choice(("fp16", "int8")), seed=seed
    )
    tokens = ids_of(native, rows, seed)
    sizes = [chance.randint(1, 40) for _ in range(5)]
    assert in_pieces(engine, tokens, sizes).tobytes() == run(native, native.new_cache(), tokens).tobytes()


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_walks_over_caches(device: Device, kv_cache: str) -> None:
    """Keep, crop, fork, trees and several sequences at once; plain decoding is the native engine's."""
    native, engine = divided(make_spec(vocab=40, layers=2, experts=4, used=2), device, 1, kv_cache=kv_cache)
    plain = Plain(native)
    for seed in range(6):
        walk(engine, seed, steps=12, plain=plain, longest=90)


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "qwen3_5_moe_text"])
def test_checkpoints(tmp_path: Path, model_type: str) -> None:
    """Both words together: whole layers on the CPU, and experts of further layers."""
    folder = write_folder(tmp_path / "folder", build(model_type, PLAIN))
    options = {"threads": 1, "max_context": CONTEXT}
    native = load_native(LoadRequest(folder, **options)).engine
    tokens, count = text(build(model_type, PLAIN)), len(native.spec.layers)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for more in ({"cpu_moe": True}, {"n_cpu_moe": 1}, {"gpu_layers": 1, "n_cpu_moe": 99}):
        engine = load(LoadRequest(folder, **options, **more)).engine
        assert isinstance(engine, SplitEngine if "gpu_layers" in more else OpenClEngine)
        assert run(engine, engine.new_cache(), tokens).tobytes() == expected
        assert engine.describe()["n_cpu_moe"] == (1 if more == {"n_cpu_moe": 1} else count)
        for (name, one), (other_name, other) in zip(sorted_weights(engine), sorted_weights(native), strict=True):
            assert name == other_name
            assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], name


def test_what_is_counted_is_the_native_engines(device: Device) -> None:
    spec = make_spec(layers=3, experts=[0, 4, 3], used=[0, 2, 1], tied=False)
    native, engine = divided(spec, device, 2, "sym_int4")
    tokens = ids_of(native, 20)
    expected = native.forward(Batch([native.new_cache()], [20], tokens, chain(20)))
    output = engine.forward(Batch([engine.new_cache()], [20], tokens, chain(20)))
    assert (output.experts, output.argmax.tolist()) == (expected.experts, expected.argmax.tolist())
    ours, facts = engine.describe(), native.describe()
    assert (ours["experts"], ours["n_cpu_moe"]) == (facts["experts"], 2)
    assert facts["isa"] in ours["isa"]
    assert ours["device_bytes"] < ours["weight_bytes"]
    _, whole = divided(spec, device, 0, "sym_int4")
    assert "n_cpu_moe" not in whole.describe()
    assert abs(whole.describe()["weight_bytes"] - ours["weight_bytes"]) < 0.05 * ours["weight_bytes"]
    assert abs(whole.describe()["step_bytes"] - ours["step_bytes"]) < 0.05 * ours["weight_bytes"]
    assert key_of(identity(whole)) != key_of(identity(engine))


def test_a_step_that_fails_in_the_core_leaves_nothing_to_keep(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    native, engine = divided(make_spec(experts=3, used=2), device, 2)
    tokens, cache, other = ids_of(native, 20), engine.new_cache(), native.new_cache()
    for one, own in ((engine, cache), (native, other)):
        run(one, own, tokens)
        own.keep(range(20))
    core = engine._decoder.weights.held.core
    with monkeypatch.context() as patch:
        patch.setattr(type(core), "run", lambda *_: (_ for _ in ()).throw(EngineError("no thread")))
        with pytest.raises(EngineError, match="no thread"):
            run(engine, cache, tokens[:3])
    with pytest.raises(InputError, match="row 0 is not one of the last step's 0 rows"):
        cache.keep([0])
    assert run(engine, cache, tokens[:3]).tobytes() == run(native, other, tokens[:3]).tobytes()


# ---- the choice ------------------------------------------------------------------------------------------------------


def of_memory(device: Device, nbytes: int) -> None:
    """Limit the device's memory to this number of bytes."""
    device.memory = int(nbytes / SHARE) + 10


def test_experts_go_to_the_cpu_before_whole_layers(small: Device, caplog: pytest.LogCaptureFixture) -> None:
    model = of(make_spec(layers=4, experts=8, used=2, intermediate=512), "sym_int4")
    for cpu_moe in (0, 1, 3, 4):
        of_memory(small, model.need(4, cpu_moe).total)
        caplog.clear()
        with caplog.at_level(logging.INFO, "ipex_lookahead"):
            assert choose(small, model) == Placement(4, cpu_moe)
        said = f"the routed experts of its first {cpu_moe} layers run on the CPU"
        assert (said in caplog.text) == (cpu_moe > 0)
        assert caplog.records[0].levelname == ("WARNING" if cpu_moe else "INFO")
    of_memory(small, model.need(2, 4).total)
    caplog.clear()
    assert choose(small, model) == Placement(2, 4)
    assert "2 of its 4 layers and the lm_head are put there, the others run on the CPU and the routed" in caplog.text


def test_a_choice_reads_the_fewest_bytes_on_the_cpu(small: Device) -> None:
    """Of all divisions that fit, by trying each of them; layers without experts among the others."""
    spec = make_spec(layers=5, experts=[0, 6, 0, 6, 6], used=[0, 2, 0, 2, 1], intermediate=[96, 256, 2048, 64, 256])
    model = of(spec, "sym_int4")
    largest = model.need(5).total
    for share in (0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99):
        of_memory(small, int(share * largest))
        free = int(share * largest)
        each = [(layers, cpu_moe) for layers in range(1, 6) for cpu_moe in range(6)]
        fitting = [one for one in each if model.need(*one).total <= free]
        chosen = choose(small, model)
        fewest = min(model.cpu_bytes(*one) for one in fitting)
        assert model.cpu_bytes(chosen.layers, chosen.cpu_moe) == fewest
        assert (chosen.layers, chosen.cpu_moe) in fitting


def test_what_is_requested_is_used_or_refused(small: Device) -> None:
    model = of(make_spec(layers=4, experts=8, used=2, intermediate=512), "sym_int4")
    of_memory(small, model.need(4, 2).total)
    assert choose(small, model, n_cpu_moe=3) == Placement(4, 3)
    assert choose(small, model, n_cpu_moe=99) == choose(small, model, cpu_moe=True) == Placement(4, 4)
    assert choose(small, model, gpu_layers=9) == Placement(4, 2)
    assert choose(small, model, gpu_layers=3, n_cpu_moe=3) == Placement(3, 3)
    assert choose(small, model, n_cpu_moe=0).cpu_moe == 0  # fewer layers
    with pytest.raises(OutOfMemoryError, match="the model needs .* has .* for it") as caught:
        choose(small, model, gpu_layers=4, n_cpu_moe=0)
    assert caught.value.hint.startswith(
        "n_cpu_moe=2 fits (the routed experts of the first 2 of 4 layers run on the CPU); or use kv_cache="
    )
    with pytest.raises(OutOfMemoryError, match="the model with the experts of 1 layers on the CPU needs"):
        choose(small, model, gpu_layers=4, n_cpu_moe=1)
    of_memory(small, 1000)
    with pytest.raises(
        OutOfMemoryError, match="1 of the model's 4 layers with the experts of 4 layers on the"
    ) as caught:
        choose(small, model)
    assert "not one layer fits" in caught.value.hint


def test_requests_that_say_nothing_are_refused(small: Device) -> None:
    mixture, dense = (of(make_spec(layers=2, experts=n, used=min(n, 2)), "sym_int4") for n in (4, 0))
    with pytest.raises(InputError, match="n_cpu_moe=-1: it is a number of layers from 0"):
        choose(small, mixture, n_cpu_moe=-1)
    with pytest.raises(InputError, match="cpu_moe=True puts the experts of all layers on the CPU, n_cpu_moe=1 those"):
        choose(small, mixture, n_cpu_moe=1, cpu_moe=True)
    for given_ in ({"n_cpu_moe": 1}, {"cpu_moe": True}):
        with pytest.raises(InputError, match="made_up has no mixture of experts; leave it out"):
            choose(small, dense, **given_)
    assert choose(small, dense, n_cpu_moe=0) == Placement(2)


@pytest.mark.parametrize("cpu_moe", range(4))
def test_memory_is_what_was_said(small: Device, cpu_moe: int) -> None:
    spec = make_spec(layers=3, experts=[0, 4, 4], used=[0, 2, 2], tied=False, bias="gud", intermediate=160)
    need = of(spec, "sym_int4").need(3, cpu_moe)
    _, engine = divided(spec, small, cpu_moe, "sym_int4")
    assert need.weights == engine._decoder.weights.held.nbytes


def test_loading_puts_experts_on_the_cpu_by_itself(tmp_path: Path, small: Device) -> None:
    folder = write_folder(tmp_path / "folder", build("qwen3_moe", PLAIN))
    checkpoint = open_checkpoint(folder)
    spec = checkpoint.spec
    plan = LoadRequest(folder, low_bit="sym_int4").plan("sym_int4").of_spec(spec)
    of_memory(small, measured(checkpoint, spec, plan, "fp16", None).need(len(spec.layers), 1).total)
    engine = load(LoadRequest(folder, low_bit="sym_int4", threads=1)).engine
    assert isinstance(engine, OpenClEngine)
    assert engine.describe()["n_cpu_moe"] == 1
    native = load_native(LoadRequest(folder, low_bit="sym_int4", threads=1)).engine
    tokens = text(build("qwen3_moe", PLAIN))
    assert run(engine, engine.new_cache(), tokens).tobytes() == run(native, native.new_cache(), tokens).tobytes()


def test_other_engines_refuse_the_words(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", build("qwen3_moe", PLAIN))
    for name, value in (("n_cpu_moe", 1), ("cpu_moe", True)):
        with pytest.raises(InputError, match=f"{name}={value} is not for the native engine: all layers are on the CPU"):
            load_native(LoadRequest(folder, **{name: value}))


def test_two_layers_do_not_share_a_visit(device: Device) -> None:
    """Sums of one layer are on their way while the next layer's rows are read: many steps, recorded and not."""
    native, engine = divided(make_spec(layers=4, experts=5, used=2, vocab=50), device, 3, "sym_int4")
    tokens, caches = ids_of(native, 60), (native.new_cache(), engine.new_cache())
    for at in range(60):
        pair = [run(one, cache, tokens[at : at + 1]) for one, cache in zip((native, engine), caches, strict=True)]
        assert pair[0].tobytes() == pair[1].tobytes(), at
        for cache in caches:
            cache.keep([0])
    assert np.isfinite(pair[0]).all()
