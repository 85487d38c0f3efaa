"""How many threads are used, on machines of every kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipex_lookahead.engines import machine
from ipex_lookahead.errors import InputError


def test_the_environment_decides_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPEX_LOOKAHEAD_THREADS", "7")
    assert machine.default_threads() == 7
    for bad in ("0", "-1", "many", "4096"):
        monkeypatch.setenv("IPEX_LOOKAHEAD_THREADS", bad)
        with pytest.raises(InputError, match="IPEX_LOOKAHEAD_THREADS"):
            machine.default_threads()


def test_hyper_threads_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IPEX_LOOKAHEAD_THREADS", raising=False)
    monkeypatch.setattr(machine, "_allowed_cpus", lambda: {0, 1, 2, 3, 8})
    monkeypatch.setattr(machine, "_physical_cores", lambda cpus: {str(c % 4) for c in cpus})
    monkeypatch.setattr(machine, "cpu_quota", lambda: None)
    assert machine.default_threads() == 4


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (3.9, 3), (0.5, 1), (64.0, 8)])
def test_a_quota_is_rounded_down_and_never_below_one(
    quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IPEX_LOOKAHEAD_THREADS", raising=False)
    monkeypatch.setattr(machine, "_physical_cores", lambda cpus: set(map(str, range(8))))
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert machine.default_threads() == expected


@pytest.mark.programs
def test_the_peak_is_this_processs_own() -> None:
    """Of a process that one with a gigabyte has started: the system's usage of resources shows the gigabyte."""
    child = (
        "import resource; from ipex_lookahead.engines.machine import peak_memory;"
        " print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, peak_memory())"
    )
    parent = f"import os, sys; big = bytearray(1 << 30); os.execv(sys.executable, [sys.executable, '-c', {child!r}])"
    said = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True).stdout.split()
    usage, peak = map(int, said)
    assert usage > 1 << 30
    assert 1 << 20 < peak < 1 << 29


def test_the_peak_is_unknown_where_linux_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "VmHWM:", "VmHWM: many kB"):
        monkeypatch.setattr(Path, "read_text", lambda *a, text=text, **k: text)
        assert machine.peak_memory() is None


def test_affinity_limits_the_cores() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine._allowed_cpus() == {min(allowed)}
        assert len(machine._physical_cores(machine._allowed_cpus())) == 1
    finally:
        os.sched_setaffinity(0, allowed)
