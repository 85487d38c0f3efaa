"""Steps that are recorded once and run again as one command: the same bytes, and plain launches where it fails."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.opencl import decoder, recording
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.errors import EngineError
from tests.engines.opencl.test_engine import both
from tests.support.native import ids_of, run
from tests.support.specs import make_spec


def test_recorded_steps_give_the_bytes_of_plain_ones(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every size up to 16 rows, over one block of positions and several, and when old ones have been dropped."""
    if device.recorder is None:
        pytest.skip(f"{device.name} has no command buffers ({device.paths['command buffers']})")
    monkeypatch.setattr(decoder, "MOST_RECORDED", 3)
    native, engine = both(make_spec(context=1100, layers=1, window=None), device, "sym_int4")
    cache, other = engine.new_cache(), native.new_cache()
    tokens = ids_of(native, 1000)
    at = 0
    for rows in (1, 1, 5, 16, 255, 1, 2, 5, 300, 1, 2, 3, 4, 260, 1, 2):
        own = tokens[at : at + rows]
        assert run(engine, cache, own).tobytes() == run(native, other, own).tobytes(), (rows, at)
        for one in (cache, other):
            one.keep(range(rows))
        at += rows
        assert len(engine._decoder._recorded) <= 3
    assert (4, 2, 2, 4, 2, 0, 1) in engine._decoder._recorded
    recorded = engine._decoder._recorded[4, 2, 2, 4, 2, 0, 1]
    cache.crop(at - 2)
    run(engine, cache, own)
    assert engine._decoder._recorded[4, 2, 2, 4, 2, 0, 1] is recorded


def test_without_the_extension_launches_are_plain(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    native, engine = both(make_spec(layers=1), device)
    monkeypatch.setattr(device, "recorder", None)
    tokens = ids_of(native, 5)
    assert run(engine, engine.new_cache(), tokens).tobytes() == run(native, native.new_cache(), tokens).tobytes()
    assert not engine._decoder._recorded


def test_a_driver_whose_command_buffers_fail_is_left_to_plain_launches(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.recorder is None:
        pytest.skip(f"{device.name} has no command buffers ({device.paths['command buffers']})")
    enqueue = recording.Recorder.enqueue
    monkeypatch.setattr(recording.Recorder, "enqueue", lambda self, buffer: None)
    assert recording.recorder_of(device) == (None, "its self-test failed: recorded launches give other bytes")
    monkeypatch.setattr(recording.Recorder, "enqueue", enqueue)

    def refuse(*_: Any) -> Any:
        raise EngineError("the driver has no such thing")

    monkeypatch.setattr(recording, "loader", refuse)
    assert recording.recorder_of(device) == (None, "its self-test failed: the driver has no such thing")
    monkeypatch.setattr(device, "extensions", frozenset())
    assert recording.recorder_of(device) == (None, "not offered")


@pytest.mark.parametrize("number", range(1, 4))
def test_what_the_driver_refuses_is_an_error(device: Device, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Not a bad kernel, since drivers differ there: without arguments Intel's says so, and pocl's crashes."""
    if device.recorder is None:
        pytest.skip(f"{device.name} has no command buffers ({device.paths['command buffers']})")
    _, engine = both(make_spec(layers=1), device)
    monkeypatch.setitem(device.recorder._calls, recording.NAMES[number], lambda *_: -52)
    with pytest.raises(EngineError, match=r"could not be (recorded|finished|run): OpenCL's error -52"):
        run(engine, engine.new_cache(), ids_of(engine, 3))
    monkeypatch.undo()
    run(engine, engine.new_cache(), ids_of(engine, 3))
