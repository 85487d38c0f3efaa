"""The memory's speed, measured once a day."""

from __future__ import annotations

import json
import time

import pytest

from ipex_lookahead.engines import bandwidth


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """How often it was measured; every time it is a little faster."""
    rates: list[float] = []

    def read(size, threads, isa):
        assert size == bandwidth.READ_BYTES
        rates.append(20e9 + len(rates))
        return rates[-1]

    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bandwidth.core, "read_bandwidth", read)
    return rates


def test_it_is_measured_once(measured):
    assert [bandwidth.cached_bandwidth() for _ in range(3)] == [20e9] * 3
    assert bandwidth.measured_bandwidth() == 20e9 + 1
    assert bandwidth.cached_bandwidth() == 20e9 + 1
    assert len(measured) == 2


def test_the_most_of_a_day_is_kept(measured, monkeypatch):
    """Another program can only take bandwidth away."""
    assert bandwidth.measured_bandwidth() == 20e9
    monkeypatch.setattr(bandwidth.core, "read_bandwidth", lambda *_: 5e9)
    assert bandwidth.measured_bandwidth() == 5e9
    assert bandwidth.cached_bandwidth() == 20e9
    monkeypatch.setattr(bandwidth.core, "read_bandwidth", lambda *_: 30e9)
    assert bandwidth.measured_bandwidth() == bandwidth.cached_bandwidth() == 30e9


@pytest.mark.parametrize(
    "wrong",
    ["", "[]", "{}", '{"bytes_a_second": "x", "time": 0, "on": ""}', "old", "another machine", "negative", "future"],
)
def test_what_is_no_longer_true_is_measured_again(measured, tmp_path, wrong):
    bandwidth.cached_bandwidth()
    file = tmp_path / "cache" / "bandwidth.json"
    said = json.loads(file.read_text())
    said |= {
        "old": {"time": time.time() - bandwidth.CACHE_SECONDS - 60},
        "future": {"time": time.time() + 3600},
        "another machine": {"on": "a machine"},
        "negative": {"bytes_a_second": -1.0},
    }.get(wrong, {})
    file.write_text(wrong if wrong[:1] in ("", "[", "{") else json.dumps(said))
    assert bandwidth.cached_bandwidth() == 20e9 + 1
    assert bandwidth.cached_bandwidth() == 20e9 + 1


def test_a_cache_that_cannot_be_written_is_no_error(measured, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert bandwidth.cached_bandwidth() == 20e9
    assert bandwidth.cached_bandwidth() == 20e9 + 1
