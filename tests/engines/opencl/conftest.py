from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ipex_lookahead.engines.opencl.device import Device

SPELLINGS: dict[str, Any] = {"best": None, "plain": ()}


@pytest.fixture(scope="session", params=SPELLINGS)
def device(request: pytest.FixtureRequest) -> Any:
    """The device that is chosen by default, its kernels as it likes them best, and plain."""
    from ipex_lookahead.engines.opencl.device import device_of

    return device_of(None, SPELLINGS[request.param])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device with nothing on it, whose memory a test may change."""
    from ipex_lookahead.engines.opencl.device import Objects, device_of

    device = device_of(None)
    monkeypatch.setattr(device, "objects", Objects(device.cl, device))
    monkeypatch.setattr(device, "memory", device.memory)
    monkeypatch.setattr(device, "largest_buffer", device.largest_buffer)
    return device


def need(device: Device, *names: str) -> None:
    """Skip the test where the device lacks one of what kernels may use, keys of ``SPELT``."""
    from ipex_lookahead.engines.opencl.device import NOT_OFFERED, SPELT

    for name in names:
        state = device.paths[SPELT[name]]
        if state == NOT_OFFERED or state.startswith("its self-test failed"):
            pytest.skip(f"{device.name}, {SPELT[name]}: {state}")
