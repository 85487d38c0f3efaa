"""A step's kernels by the device's own clock, and sequences that begin with zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.bench.roofline import RandomModel, profile
from ipex_lookahead.bench.routing import Routing
from ipex_lookahead.engines import prefill
from ipex_lookahead.engines.api import WarmsUp
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.profiling import profiled
from ipex_lookahead.errors import InputError
from tests.engines.opencl.test_engine import both
from tests.support.native import ids_of, run
from tests.support.specs import make_spec


def test_every_launch_of_a_step_is_timed_and_nothing_is_changed(device: Device) -> None:
    native, engine = both(make_spec(layers=3), device, "sym_int4")
    tokens, cache = ids_of(native, 9), engine.new_cache()
    expected = run(engine, cache, tokens).tobytes()
    before = (device.queue, device.launch, device.recorder)
    with profiled(device) as profile:
        assert run(engine, cache, tokens).tobytes() == expected
    assert (device.queue, device.launch, device.recorder) == before
    ((launches,),) = engine._decoder._launches.values()
    assert sum(one.launches for one in profile.kernels) == len(launches)
    assert {one.kernel: one.launches for one in profile.kernels}["attend"] == 3
    assert 0 < profile.busy <= profile.seconds
    assert [one.seconds for one in profile.kernels] == sorted((one.seconds for one in profile.kernels), reverse=True)
    with profiled(device) as nothing:
        pass
    assert (nothing.kernels, nothing.seconds) == ([], 0.0)
    assert run(engine, cache, tokens).tobytes() == expected


@pytest.mark.parametrize("mixture", [False, True], ids=["dense", "mixture"])
def test_the_bytes_of_a_step_are_its_weights_keys_and_values(device: Device, mixture: bool) -> None:
    options: dict[str, Any] = {"experts": 4, "used": 2, "scores": "chosen"} if mixture else {}
    _, engine = both(make_spec(layers=2, tied=False, **options), device, "sym_int8")
    batch = prefill.chain(engine.new_cache(50), np.array([3], np.int32))
    found = profile(engine, batch, copy_gb_s=1.0)
    assert (found["rows"], found["positions"]) == (1, 50)
    facts = engine.describe()
    embedded = sum(one["bytes"] for one in found["kernels"] if one["kernel"] == "embed")
    read = sum(one["bytes"] for one in found["kernels"]) - embedded
    assert read == pytest.approx(facts["step_bytes"] + 51 * facts["kv_bytes_per_token"], rel=0.01)
    for one in found["kernels"]:
        assert (one["share"] is None) == (one["bytes"] == 0)
        assert one["share"] is None or one["share"] == pytest.approx(one["gb_s"], abs=0.01)


def test_routers_on_the_device_choose_the_experts_of_a_trace(device: Device) -> None:
    spec = make_spec(layers=2, tied=False, experts=8, used=2, scores="all")
    routing = Routing(spec, 1, 4)
    engine = RandomModel(spec, "sym_int8", routing=routing).on(device, 8, 1)
    tokens = routing.tokens("trace", 0, 4)
    assert engine.forward(prefill.chain(engine.new_cache(), tokens)).experts == routing.experts(tokens)


def test_after_the_first_step_of_a_number_of_rows_nothing_is_built(device: Device) -> None:
    """As the calibration of lookahead assumes of engines that say so."""
    _, engine = both(make_spec(), device, "sym_int4")
    assert isinstance(engine, WarmsUp)
    batch = prefill.chain(engine.new_cache(), np.arange(5, dtype=np.int32))
    engine.forward(batch)
    programs, launches = dict(device._programs), dict(engine._decoder._launches)
    engine.forward(batch)
    assert (programs, launches) == (device._programs, engine._decoder._launches)


def test_a_profile_that_fails_leaves_the_device_as_it_was(device: Device) -> None:
    before = (device.queue, device.launch, device.recorder)
    with pytest.raises(ZeroDivisionError), profiled(device):
        raise ZeroDivisionError
    assert (device.queue, device.launch, device.recorder) == before


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_sequences_of_zeros_are_the_native_engines(device: Device, kv_cache: str) -> None:
    native, engine = both(make_spec(), device, kv_cache=kv_cache)
    used = engine.new_cache()
    run(engine, used, ids_of(native, 200))  # whose pages the next one gets
    del used
    tokens = ids_of(native, 5)
    blank = engine.new_cache(150)
    assert blank.length == 150
    assert run(engine, blank, tokens).tobytes() == run(native, native.new_cache(150), tokens).tobytes()
    for wrong in (-1, 513):
        with pytest.raises(InputError, match="blank is"):
            engine.new_cache(wrong)
    assert np.isfinite(run(engine, engine.new_cache(511), tokens[:1])).all()
