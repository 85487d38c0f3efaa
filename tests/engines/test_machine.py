"""How many threads are used, on machines of every kind."""

from __future__ import annotations

import os
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
    monkeypatch.setattr(machine, "_cpu_quota", lambda: None)
    assert machine.default_threads() == 4


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (3.9, 3), (0.5, 1), (64.0, 8)])
def test_a_quota_is_rounded_down_and_never_below_one(
    quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IPEX_LOOKAHEAD_THREADS", raising=False)
    monkeypatch.setattr(machine, "_physical_cores", lambda cpus: set(map(str, range(8))))
    monkeypatch.setattr(machine, "_cpu_quota", lambda: quota)
    assert machine.default_threads() == expected


@pytest.mark.parametrize(("text", "expected"), [("max 100000\n", None), ("150000 100000\n", 1.5)])
def test_the_cgroups_quota_is_read(
    text: str, expected: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    real = Path
    monkeypatch.setattr(machine, "Path", lambda p: file if str(p).endswith("cpu.max") else real(tmp_path / "absent"))
    assert machine._cpu_quota() == expected


def test_affinity_limits_the_cores() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine._allowed_cpus() == {min(allowed)}
        assert len(machine._physical_cores(machine._allowed_cpus())) == 1
    finally:
        os.sched_setaffinity(0, allowed)
