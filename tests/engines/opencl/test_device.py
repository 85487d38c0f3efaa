"""Which OpenCL device is chosen, and what is said where there is none, or one that computes otherwise."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipex_lookahead.engines.opencl import device as module
from ipex_lookahead.engines.opencl import programs, self_test
from ipex_lookahead.engines.opencl.device import Device, listed, what_to_do
from ipex_lookahead.engines.opencl.programs import DOT, SUBGROUPS, flags
from ipex_lookahead.errors import EngineError, InputError, OutOfMemoryError


def test_without_pyopencl_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(EngineError, match="needs pyopencl") as caught:
        Device()
    assert "ipex-lookahead[xpu]" in caught.value.hint


class FakeError(Exception):
    code = -1001


def fake_opencl(platforms: Callable[[], list[Any]]) -> Any:
    """As much of pyopencl as looking for devices takes."""
    return SimpleNamespace(
        get_platforms=platforms,
        Error=FakeError,
        RuntimeError=FakeError,
        status_code=SimpleNamespace(DEVICE_NOT_FOUND=-1001),
        device_type=SimpleNamespace(GPU=4, CPU=2),
    )


def test_without_a_platform_or_a_device_it_says_which_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[Any]:
        raise FakeError

    empty = SimpleNamespace(get_devices=none)
    for platforms in (none, list, lambda: [empty]):
        monkeypatch.setattr(module, "opencl", lambda platforms=platforms: fake_opencl(platforms))
        assert listed() == []
        with pytest.raises(EngineError, match="no OpenCL device") as caught:
            Device()
        assert "intel-opencl-icd" in caught.value.hint


def test_a_gpu_is_chosen_before_what_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [SimpleNamespace(name=name, type=kind) for name, kind in (("cpu", 2), ("arc", 4), ("iris", 4))]
    monkeypatch.setattr(module, "_devices", lambda: devices)
    monkeypatch.setattr(module, "opencl", lambda: fake_opencl(list))
    for name, number in (
        (None, 1),
        ("opencl", 1),
        ("xpu", 1),
        ("opencl:0", 0),
        ("opencl:2", 2),
        ("xpu:0", 1),
        ("xpu:1", 2),
    ):
        assert module._chosen(name) == (number, devices[number])
    for name in ("opencl:3", "opencl:-1", "cuda", "opencl:", "cpu"):
        with pytest.raises(InputError, match=r"opencl:0 \(cpu\), opencl:1 \(arc\), opencl:2 \(iris\)"):
            module._chosen(name)
    for name in ("xpu:2", "xpu:24"):  # a GPU's number, never a number of layers
        with pytest.raises(EngineError, match=f"'{name}': 2 of the OpenCL devices") as caught:
            module._chosen(name)
        assert "a number of layers is gpu_layers" in caught.value.hint
    del devices[1:]
    assert module._chosen(None) == (0, devices[0])
    with pytest.raises(EngineError, match="'xpu': 0 of the OpenCL devices"):
        module._chosen("xpu")


class Old:
    """A device of OpenCL 2.1: it refuses what came later."""

    extensions = "cl_khr_integer_dot_product"

    @property
    def opencl_c_all_versions(self) -> Any:
        raise FakeError

    opencl_c_features = opencl_c_all_versions


def versions(*majors: int) -> list[Any]:
    return [SimpleNamespace(name="OpenCL C", version=major << 22) for major in majors]


ORDERED = ("__opencl_c_int64", "__opencl_c_atomic_order_acq_rel", "__opencl_c_atomic_scope_device")
ALL = "cl_intel_subgroups cl_intel_required_subgroup_size cl_khr_integer_dot_product"
NEW = {"opencl_c_version": "OpenCL C 1.2", "opencl_c_features": [SimpleNamespace(name=name) for name in ORDERED]}


@pytest.mark.parametrize(
    ("raw", "best", "language"),
    [
        # Intel's driver for GPUs has OpenCL C 3.0, and says 1.2 of itself, which is part of all it has.
        (SimpleNamespace(extensions=ALL, opencl_c_all_versions=versions(1, 1, 3), **NEW), tuple(module.SPELT), "3.0"),
        (SimpleNamespace(extensions=ALL, opencl_c_all_versions=versions(1, 1), **NEW), (SUBGROUPS, DOT), "1.2"),
        (SimpleNamespace(extensions="", opencl_c_all_versions=versions(1, 3), **NEW), (), "1.2"),
        (Old(), (DOT,), "1.2"),
    ],
    ids=["GPU", "without 3.0", "without subgroups", "old"],
)
def test_what_a_device_says_it_has(raw: Any, best: tuple[str, ...], language: str) -> None:
    device = Device.__new__(Device)
    raw.type = 4
    device.cl, device.raw, device.extensions = fake_opencl(list), raw, frozenset(raw.extensions.split())
    device.paths = dict.fromkeys(module.SPELT.values(), module.NOT_OFFERED)
    spellings = device._spellings()
    assert spellings[0] == best
    assert spellings[-1] == ()
    has_c3 = device._has_c3()
    assert flags(best, has_c3)[0] == f"-cl-std=CL{language}"
    assert flags((), has_c3)[0] == flags((SUBGROUPS,), has_c3)[0] == "-cl-std=CL1.2"


pyopencl = pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")


def test_it_says_what_the_devices_are(device: Device) -> None:
    found = listed()
    assert [one.number for one in found] == list(range(len(found)))
    assert found[device.number].name == device.name
    assert found[device.number].memory_bytes > 0
    facts = device.facts()
    assert facts["device"] == f"opencl:{device.number}"
    assert facts["driver"] == found[device.number].driver


def test_a_device_that_computes_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roots are wrong in the source: which bits relaxed mathematics changes is up to the compiler."""
    source = module.source
    monkeypatch.setattr(module, "source", lambda *files: source(*files).replace("sqrt(", "rsqrt("))
    with pytest.raises(EngineError, match=r"does not follow IEEE 754 \(square root"):
        Device()


def test_a_spelling_that_fails_its_test_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def check(device: Device) -> str:
        tried.append(device.spelling)
        return "sums over lanes" if SUBGROUPS in device.spelling else ""

    monkeypatch.setattr(module, "check", check)
    monkeypatch.setattr(Device, "_spellings", lambda device: [(SUBGROUPS, DOT), ()])
    assert Device().spelling == ()
    assert tried == [(SUBGROUPS, DOT), ()]
    with pytest.raises(EngineError, match="sums over lanes"):
        Device(spelling=(SUBGROUPS,))


def test_a_forced_spelling_that_does_not_compile_is_reported_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "NUMERICS", (*programs.NUMERICS, "-Dfloat=nonsense"))
    with pytest.raises(
        EngineError, match=r"kernels with integer dot products do not run .*could not be programmed: .*BUILD_PROGRAM"
    ) as caught:
        Device(spelling=(DOT,))
    assert "leave the spelling out" in caught.value.hint
    with pytest.raises(EngineError, match=r"^the device .* could not be programmed"):
        Device()


def test_division_and_roots_are_tried_over_the_whole_range() -> None:
    """Inputs of every exponent; quotients and roots in every range; and a device that rounds one subnormal is named."""
    x, y = self_test.range_inputs()
    exponents = [np.unique(values.view(np.uint32) >> 23 & 255) for values in (x, y)]
    assert exponents[0].tolist() == list(range(256))
    assert exponents[1].tolist() == list(range(255))
    with np.errstate(all="ignore"):
        right = np.stack([x / y, np.sqrt(np.abs(x))])
    assert not np.isnan(right).any()
    subnormal = (np.abs(right[0]) < np.finfo(np.float32).tiny) & (right[0] != 0)
    for count in (subnormal.sum(), np.isinf(right[0]).sum(), (right[0] == 0).sum(), (np.abs(right[0] - 1) < 1).sum()):
        assert count > 100
    wrong = right.copy()

    class Card:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: wrong if name == "read" else None

    assert self_test._check_range(Card()) == ""
    at = int(np.flatnonzero(subnormal)[3])
    wrong[0, at] = 0
    assert self_test._check_range(Card()) == f"division of {x[at]:.9g} / {y[at]:.9g}, and 1 values of {len(x)}"
    wrong = right.copy()
    wrong[1, 70:72] = np.nextafter(wrong[1, 70:72], np.float32(0))
    assert self_test._check_range(Card()).startswith("square root of ")


def test_several_buffers_are_read_with_one_wait(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [np.arange(n, dtype=np.int32) for n in (5, 9)]
    buffers = [device.upload(array) for array in arrays]
    copy, blocking = device.cl.enqueue_copy, []

    def noted(*arguments: Any, **named: Any) -> Any:
        blocking.append(named["is_blocking"])
        return copy(*arguments, **named)

    monkeypatch.setattr(device.cl, "enqueue_copy", noted)
    found = device.read_all((buffers[0], (5,), np.int32, 0), (buffers[1], (2,), np.int32, 12))
    assert [one.tolist() for one in found] == [[0, 1, 2, 3, 4], [3, 4]]
    assert blocking == [False, False]


def test_what_opencl_says_becomes_an_error_of_ours(device: Device) -> None:
    with pytest.raises(EngineError, match="programmed"):
        device.program("rows", options=["-Dkernel=nonsense"])


class Lazy:
    """A driver that makes buffers of any size, and allocates them at the first use: it counts how many it makes."""

    def __init__(self, *_: Any) -> None:
        Lazy.made += 1

    made = 0


@pytest.fixture
def lazy(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device with a driver that refuses nothing, 1,000 bytes of memory, and buffers of 600 at most."""
    monkeypatch.setattr(device, "objects", module.Objects(device.cl, device))
    monkeypatch.setitem(device.objects.kinds, "Buffer", Lazy)
    monkeypatch.setattr(device, "memory", 1000)
    monkeypatch.setattr(device, "largest_buffer", 600)
    monkeypatch.setattr(Lazy, "made", 0)
    return device


def test_what_is_larger_than_the_largest_buffer_is_refused(lazy: Device) -> None:
    for make in (lambda: lazy.empty(601), lambda: lazy.upload(np.zeros(151, np.float32)), lambda: lazy.empty(1 << 60)):
        with pytest.raises(OutOfMemoryError, match="not be given memory: .*largest that it has is 600(\n|$)") as caught:
            make()
        assert "a shorter context" in caught.value.hint
    assert Lazy.made == 0
    assert lazy.empty(600) is not None
    assert Lazy.made == 1


def test_what_is_not_left_is_refused_until_something_is_given_back(lazy: Device) -> None:
    first = [lazy.empty(600)]
    with pytest.raises(OutOfMemoryError, match="a buffer of 404 bytes is needed, and 400 of its 1,000 are left"):
        lazy.upload(np.zeros(101, np.float32))
    second = lazy.upload(np.zeros(100, np.float32))
    with pytest.raises(OutOfMemoryError, match="and 0 of its 1,000 are left"):
        lazy.empty(0)  # which is a buffer of 4 bytes
    assert (Lazy.made, lazy.objects.nbytes) == (2, 1000)
    first.clear()
    assert lazy.objects.nbytes == 400
    assert lazy.empty(600) is not second


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 5)), max_size=30))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_account_is_the_sum_of_what_is_alive(lazy: Device, steps: list[tuple[int, int]]) -> None:
    """Whatever is made and given back, in any order: refused exactly where it does not fit."""
    held: dict[int, tuple[Any, int]] = {}
    for nbytes, place in steps:
        held.pop(place, None)
        before, size = sum(one for _, one in held.values()), max(nbytes, 4)
        assert lazy.objects.nbytes == before
        if size <= 600 and before + size <= 1000:
            held[place] = (lazy.empty(nbytes), size)
        else:
            with pytest.raises(OutOfMemoryError):
                lazy.empty(nbytes)
    made = sum(size for _, size in held.values())
    assert lazy.objects.nbytes == made
    held.clear()
    assert lazy.objects.nbytes == 0


def test_a_real_buffer_is_counted_as_long_as_it_lives(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "objects", module.Objects(device.cl, device))
    made = [device.empty(4000), device.upload(np.zeros(10, np.float64))]
    assert device.objects.nbytes == 4080 == sum(one.size for one in made)
    with pytest.raises(OutOfMemoryError, match="given memory"):
        device.empty(1 << 60)
    assert device.objects.nbytes == 4080
    del made
    assert device.objects.nbytes == 0


def test_a_gpu_that_no_driver_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to do depends on what the kernel shows of it: nothing, a node of somebody else's, or Windows'."""
    assert "Resizable BAR" in what_to_do(tmp_path)
    (tmp_path / "dxg").touch()
    assert what_to_do(tmp_path).startswith("under WSL2 the GPU is Windows' own")
    assert "no group to join" in what_to_do(tmp_path)
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    monkeypatch.setattr("ipex_lookahead.engines.opencl.device.access", lambda *_: False)
    assert what_to_do(tmp_path).startswith(f"this user may not open {tmp_path}/dri/renderD128: sudo usermod")
    monkeypatch.undo()
    assert "Resizable BAR" in what_to_do(tmp_path)
