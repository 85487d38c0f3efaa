"""A step's kernels by the device's own clock, and sequences that begin with zeros."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

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
    (launches,) = engine._decoder._launches.values()
    assert sum(one.launches for one in profile.kernels) == len(launches)
    assert {one.kernel: one.launches for one in profile.kernels}["attend"] == 3
    assert 0 < profile.busy <= profile.seconds
    assert [one.seconds for one in profile.kernels] == sorted((one.seconds for one in profile.kernels), reverse=True)
    with profiled(device) as nothing:
        pass
    assert (nothing.kernels, nothing.seconds) == ([], 0.0)
    assert run(engine, cache, tokens).tobytes() == expected


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
