"""Downloads through pinned memory, which GPUs with memory of their own use: the same bytes, in parts of any size."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.staging import LEAST_STAGED, Staging


def test_parts_of_any_size_are_the_buffers_bytes(device: Device) -> None:
    values = np.random.default_rng(0).integers(0, 255, 70_001, np.uint8)
    buffer, staging = device.upload(values), Staging(device, half=1000)
    for count, offset in ((1, 0), (999, 4), (1000, 8), (1001, 0), (2000, 16), (3001, 0), (70_001, 0)):
        found = np.zeros(count, np.uint8)
        staging.read(buffer, found, offset)
        assert found.tobytes() == values[offset : offset + count].tobytes(), (count, offset)


def test_large_reads_are_staged_after_what_is_enqueued(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "staging", Staging(device, half=3 * LEAST_STAGED // 2))
    values = np.random.default_rng(0).standard_normal((3, LEAST_STAGED), np.float32)
    buffer, held = device.upload(np.zeros_like(values)), device.objects.nbytes
    device.copy(device.upload(values), buffer, values.nbytes)
    small = (buffer, (2,), np.float32, 4)
    (few, whole) = device.read_all(small, (buffer, values.shape, np.float32, 0))
    assert few.tobytes() == values[0, 1:3].tobytes()
    assert whole.tobytes() == values.tobytes()
    assert device.staging is not None
    assert device.staging._pinned is not None
    assert device.objects.nbytes == held, "memory of the host is not the device's"
