"""Which OpenCL device is chosen, and what is said where there is none, or one that computes otherwise."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ipex_lookahead.engines.opencl import device as module
from ipex_lookahead.engines.opencl.device import DOT, SUBGROUPS, Device, listed
from ipex_lookahead.errors import EngineError, InputError


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
    with pytest.raises(EngineError, match="'xpu:2', and 2 of the OpenCL devices"):
        module._chosen("xpu:2")
    del devices[1:]
    assert module._chosen(None) == (0, devices[0])
    with pytest.raises(EngineError, match="'xpu', and 0 of the OpenCL devices"):
        module._chosen("xpu")


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
    monkeypatch.setattr(module, "NUMERICS", (*module.NUMERICS, "-cl-fast-relaxed-math", "-cl-denorms-are-zero"))
    with pytest.raises(EngineError, match="does not compute as IEEE 754 says"):
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


def test_what_opencl_says_becomes_an_error_of_ours(device: Device) -> None:
    with pytest.raises(EngineError, match="programmed"):
        device.program("rows", options=["-Dkernel=nonsense"])
    with pytest.raises(EngineError, match="given memory"):
        device.empty(1 << 60)
