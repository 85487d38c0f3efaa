"""The memory's bandwidth: the best of several reads, cached per machine."""

from __future__ import annotations

import json
import time

import pytest

from ipex_lookahead.engines import bandwidth
from ipex_lookahead.engines.bandwidth import Bandwidth, best_of


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """Rates of the next reads; the last one repeats."""
    rates = [20e9]

    def read(size, threads, isa):
        assert size == bandwidth.READ_BYTES
        return rates.pop(0) if len(rates) > 1 else rates[0]

    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bandwidth.core, "read_bandwidth", read)
    return rates


@pytest.mark.parametrize(
    ("rates", "before", "found"),
    [
        ([20.0, 24.0, 23.0], None, Bandwidth(24.0)),
        ([15.0, 24.0, 23.0], None, Bandwidth(24.0, is_busy=True)),  # they differ by more than a third
        ([20.0, 20.0], Bandwidth(25.0), Bandwidth(25.0)),
        ([10.0, 10.0], Bandwidth(25.0), Bandwidth(25.0, is_busy=True)),  # all are slow
        ([30.0, 30.0], Bandwidth(25.0, is_busy=True), Bandwidth(30.0)),
    ],
)
def test_the_best_read_counts(rates, before, found):
    assert best_of(rates, before) == found


def test_it_is_measured_once_per_machine(reads, monkeypatch):
    assert bandwidth.cached_bandwidth() == Bandwidth(20e9)
    reads[:] = [30e9]
    assert bandwidth.cached_bandwidth() == Bandwidth(20e9)
    monkeypatch.setattr(bandwidth, "_machine", lambda: "another one with the same home folder")
    assert bandwidth.cached_bandwidth() == Bandwidth(30e9)
    monkeypatch.undo()


def test_a_busy_machine_is_measured_again_and_the_best_stays(reads):
    reads[:] = [5e9, 20e9, 20e9]
    assert bandwidth.cached_bandwidth() == Bandwidth(20e9, is_busy=True)
    reads[:] = [16e9]
    assert bandwidth.cached_bandwidth() == bandwidth.cached_bandwidth() == Bandwidth(20e9)


@pytest.mark.parametrize("wrong", ["", "[]", "{}", "old", "future", "negative", "text", "none"])
def test_an_invalid_or_old_entry_is_measured_again(reads, tmp_path, wrong):
    bandwidth.cached_bandwidth()
    file = tmp_path / "cache" / "bandwidth.json"
    ((machine, entry),) = json.loads(file.read_text()).items()
    changed = {
        "old": {**entry, "time": time.time() - bandwidth.CACHE_SECONDS - 60},
        "future": {**entry, "time": time.time() + 3600},
        "negative": {**entry, "bytes_per_second": -1.0},
        "text": {**entry, "bytes_per_second": "x"},
        "none": None,
    }
    file.write_text(json.dumps({machine: changed[wrong]}) if wrong in changed else wrong)
    reads[:] = [30e9]
    assert bandwidth.cached_bandwidth() == Bandwidth(30e9)


def test_a_cache_that_cannot_be_written_is_no_error(reads, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert bandwidth.cached_bandwidth() == Bandwidth(20e9)
    reads[:] = [30e9]
    assert bandwidth.cached_bandwidth() == Bandwidth(30e9)
