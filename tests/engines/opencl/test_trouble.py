"""What fails in the middle, and what happens at the same time: errors that say so, and never another byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.opencl import matrix_units
from ipex_lookahead.engines.opencl.cache import PAGE, Layout, Pages
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.programs import Units
from ipex_lookahead.errors import EngineError, InputError, OutOfMemoryError
from tests.engines.opencl.test_engine import both
from tests.support.native import ids_of, program_root, run
from tests.support.specs import make_spec


def says(device: Device, name: str, kind: str = "RuntimeError") -> Exception:
    """An error as pyopencl raises it."""
    record = device.cl._cl._ErrorRecord("it said so", getattr(device.cl.status_code, name), "clSomething")
    error: Exception = getattr(device.cl, kind)(record)
    return error


def failing(times: int, deed: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """``deed``, which fails when it has been done so many times."""
    done = iter(range(times))

    def attempt(*arguments: Any, **named: Any) -> Any:
        if next(done, None) is None:
            raise error
        return deed(*arguments, **named)

    return attempt


@pytest.mark.parametrize("where", ["the first launch", "half-way", "the answer"])
def test_a_device_that_is_lost_in_a_step(device: Device, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    native, engine = both(make_spec(), device)
    tokens = ids_of(native, 20)
    expected = run(native, native.new_cache(), tokens).tobytes()
    cache = engine.new_cache()
    run(engine, cache, tokens[:7])
    monkeypatch.setattr(device, "recorder", None)
    with monkeypatch.context() as patch:
        of, name, times = {"the first launch": (device, "launch", 0), "half-way": (device, "launch", 9),
                           "the answer": (device.cl, "enqueue_copy", 1)}[where]  # fmt: skip
        patch.setattr(of, name, failing(times, getattr(of, name), says(device, "OUT_OF_RESOURCES")))
        with pytest.raises(EngineError, match=r"could not be (run|read): .*OUT_OF_RESOURCES") as caught:
            run(engine, cache, tokens)
        assert "new process" in caught.value.hint
        assert "memory is short" in caught.value.hint
    with pytest.raises(InputError, match="not one of the last step's 0 rows"):
        cache.keep([0])  # of the step before, whose keys and values may be written over
    assert cache.length == 0
    assert run(engine, cache, tokens).tobytes() == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [("MEM_OBJECT_ALLOCATION_FAILURE", "MemoryError"), ("OUT_OF_HOST_MEMORY", "RuntimeError"),
     ("INVALID_BUFFER_SIZE", "LogicError")],
)  # fmt: skip
def test_no_memory_for_a_step(device: Device, monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    """A device may say so when a buffer is made, or when what uses it is to run."""
    native, engine = both(make_spec(), device)
    tokens = ids_of(native, 300)
    expected = run(native, native.new_cache(), tokens).tobytes()
    cache = engine.new_cache()
    run(engine, cache, tokens[:7])
    cache.keep(range(7))
    monkeypatch.setattr(device, "recorder", None)
    fails = failing(0, device.launch, says(device, name, kind))
    for where in ("a buffer", "a launch"):
        with monkeypatch.context() as patch:
            if where == "a buffer":
                patch.setitem(device.objects.kinds, "Buffer", fails)
            else:
                patch.setattr(device, "launch", fails)
            with pytest.raises(OutOfMemoryError, match="has no memory left") as caught:
                run(engine, cache, tokens[7:])
        assert "shorter context" in caught.value.hint
        assert cache.length == 7
    assert run(engine, cache, tokens[7:]).tobytes() == expected[-(len(expected) // 300) * 293 :]


def test_pages_grow_by_what_is_needed_where_twice_is_too_much(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(device, [Layout(kv_heads=1, head_dim=16, value_dim=16)] * 2, kv_cache="fp16")
    pages.take(10)
    made = Device.empty
    full = EngineError("no memory")

    def small(self: Device, nbytes: int) -> Any:
        if nbytes > 12 * pages.sizes[0]:
            raise full
        return made(self, nbytes)

    monkeypatch.setattr(Device, "empty", small)
    assert pages.take(1) == [10]
    assert pages.buffers[0].size == 11 * pages.sizes[0]
    with pytest.raises(EngineError, match="no memory"):
        pages.take(5)
    assert (pages.held(), pages.buffers[0].size) == (11, 11 * pages.sizes[0])
    assert pages.take(1) == [11]


def test_models_in_two_threads(device: Device) -> None:
    """One queue for both; each has its own kernels."""
    models = [both(make_spec(layers=layers), device, seed=layers) for layers in (1, 2)]
    tokens = ids_of(models[0][0], 60)
    expected = [run(native, native.new_cache(), tokens).tobytes() for native, _ in models]
    found: list[set[bytes]] = [set(), set()]

    def decode(number: int) -> None:
        engine = models[number][1]
        found[number] |= {run(engine, engine.new_cache(), tokens[:n]).tobytes() for n in (1, 60) for _ in range(10)}

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        assert found[number] == {expected[number], expected[number][: len(expected[number]) // 60]}


def meanwhile(device: Device, monkeypatch: pytest.MonkeyPatch, name: str, deed: Callable[[], Any]) -> threading.Thread:
    """A thread that does something once a method of the device has been called, as far as it can before the rest."""
    method, thread = getattr(Device, name), threading.Thread(target=deed)

    def call(self: Device, *arguments: Any) -> None:
        method(self, *arguments)
        if thread.ident is None:
            thread.start()
            thread.join(0.3)

    monkeypatch.setattr(Device, name, call)
    return thread


def crowded(pages: Pages) -> None:
    """No page is free: the next one lets the buffers grow."""
    pages.hold(pages._free)
    pages._free.clear()


def test_pages_that_grow_while_a_step_is_enqueued(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fork in another thread: the step's keys and values must not go where the pages were."""
    native, engine = both(make_spec(), device)
    tokens = ids_of(native, PAGE)
    other, cache, twin = engine.new_cache(), engine.new_cache(), native.new_cache()
    for one in (other, cache):
        run(engine, one, tokens[:5])
    other.keep(range(3))
    run(engine, other, tokens[:2])  # which a fork must leave to it: it needs a page of its own
    pages = engine._decoder.pages
    crowded(pages)
    generation = pages.generation
    thread = meanwhile(device, monkeypatch, "write", other.fork)
    assert run(engine, cache, tokens[:6]).tobytes() == run(native, twin, tokens[:6]).tobytes()
    thread.join()
    assert pages.generation == generation + 1
    for one in (cache, twin):
        one.keep(range(6))
    assert run(engine, cache, tokens[6:9]).tobytes() == run(native, twin, tokens[6:9]).tobytes()


def test_pages_that_grow_while_rows_are_kept(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a step in another thread: what is moved in one layer must be moved where the others are."""
    native, engine = both(make_spec(), device)
    tokens = ids_of(native, 9)
    caches = [(one, one.new_cache()) for one in (engine, native)]
    for one, cache in caches:
        run(one, cache, tokens[:5], np.array([-1, 0, 0, 2, 3]))
    pages = engine._decoder.pages
    crowded(pages)
    generation = pages.generation
    thread = meanwhile(device, monkeypatch, "enqueue_plain", lambda: pages.take(3))
    for _, cache in caches:
        cache.keep([0, 2, 3])
    thread.join()
    assert pages.generation == generation + 1
    got, expected = (run(one, cache, tokens[5:]).tobytes() for one, cache in caches)
    assert got == expected


def test_what_a_device_can_is_decided_by_one_thread(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one, which comes in the middle of the self-test, waits for what comes out."""
    seen: list[Units] = []

    def second() -> None:
        matrix_units.use_matrix_units(device)
        seen.append(device.units)

    def difference(_: Device, units: Units) -> str:
        device.units = units
        thread = threading.Thread(target=second)
        threads.append(thread)
        thread.start()
        thread.join(0.3)
        device.units = Units()
        return ""

    threads: list[threading.Thread] = []
    monkeypatch.setattr(device, "extensions", device.extensions | {matrix_units.EXTENSION})
    monkeypatch.setattr(device, "paths", {})
    monkeypatch.setattr(device, "units", Units())
    monkeypatch.setattr(matrix_units, "subgroup_sizes", lambda *_: [8, 16])
    monkeypatch.setattr(matrix_units, "difference", difference)
    matrix_units.use_matrix_units(device)
    threads[0].join()
    assert (len(threads), seen) == (1, [Units(8)])
    assert device.paths == {matrix_units.PATH: "used"}


FORK = """
import os, sys
import numpy as np
from ipex_lookahead import EngineError
from ipex_lookahead.engines.opencl.device import Device, device_of, listed
device = device_of(None)
buffer = device.upload(np.ones(4, np.float32))
one = np.int32(1)
kernel = device.kernel(device.program("rows"), "cap", buffer, one, one, np.float32(1), np.float32(0), buffer, one)
dropped = device.upload(np.ones(4, np.float32))
child = os.fork()
if child == 0:
    for deed in (lambda: device.read(buffer, (4,), np.float32), lambda: device_of(None).empty(4), Device, listed):
        try:
            print("did it", deed())
        except EngineError as error:
            print(error)
    sys.stdout.flush()
    del dropped
    grandchild = os.fork()
    if grandchild:
        assert os.waitpid(grandchild, 0)[1] == 0
    sys.exit(0)  # Python gives back all objects that nothing else holds
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), device.read(buffer, (4,), np.float32).tolist())
"""


RELEASE = """
#include <signal.h>
#include <unistd.h>
static pid_t first;
__attribute__((constructor)) static void begin(void) { first = getpid(); }
#define RELEASE(name) int name(void *object) { if (getpid() != first) raise(SIGSEGV); return 0; }
RELEASE(clReleaseCommandQueue)
RELEASE(clReleaseContext)
RELEASE(clReleaseKernel)
RELEASE(clReleaseMemObject)
RELEASE(clReleaseProgram)
"""
"""A driver that dies, as NVIDIA's does, where a forked process releases what its parent has made."""


@pytest.mark.parametrize("driver", ["this one", "one that dies"])
def test_a_forked_process_has_no_device_and_releases_nothing(tmp_path: Path, driver: str) -> None:
    variables = dict(os.environ)
    if driver == "one that dies":
        if (compiler := shutil.which("cc")) is None:
            pytest.skip("there is no C compiler (cc) to make such a driver with")
        (tmp_path / "release.c").write_text(RELEASE)
        library = tmp_path / "release.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "release.c"], check=True)
        variables["LD_PRELOAD"] = str(library)
    done = subprocess.run(
        [sys.executable, "-c", FORK], cwd=program_root(), capture_output=True, text=True, timeout=300, check=True,
        env=variables,
    )  # fmt: skip
    assert "leaked" not in done.stderr  # pyopencl says nothing of what is never given back
    *refused, parent = done.stdout.splitlines()
    assert len(refused) == 4
    assert all(line.startswith("OpenCL has been used in the process that this one was forked from") for line in refused)
    assert parent == "0 [1.0, 1.0, 1.0, 1.0]"
