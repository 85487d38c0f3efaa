"""What tests of costs share."""

from __future__ import annotations

import pytest

from ipex_lookahead.controller import calibration, cost


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the engine moves."""
    now = [0.0]
    for module in (calibration, cost):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    return now
