"""How many threads this process should use: the physical cores it may run on, and no more than its CPU quota."""

from __future__ import annotations

import os
from pathlib import Path

from ipex_lookahead.errors import InputError

MAX_THREADS = 1024


def default_threads() -> int:
    """Threads to use: ``IPEX_LOOKAHEAD_THREADS`` if set, else physical cores within affinity and cgroup quota."""
    if (wanted := os.environ.get("IPEX_LOOKAHEAD_THREADS")) not in (None, ""):
        return check_threads(wanted, "IPEX_LOOKAHEAD_THREADS")
    cores = len(_physical_cores(_allowed_cpus()))
    quota = _cpu_quota()
    # Rounded down: one thread more than the quota pays is stopped half-way through every step.
    return max(1, cores if quota is None else min(cores, int(quota)))


def check_threads(value: object, name: str = "threads") -> int:
    """``value`` as a number of threads. Raises InputError outside 1 to 1024."""
    try:
        threads = int(str(value))
    except ValueError:
        threads = 0
    if not 1 <= threads <= MAX_THREADS:
        raise InputError(f"{name} is {value!r}; it must be a whole number from 1 to {MAX_THREADS}")
    return threads


def _allowed_cpus() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:
        return set(range(os.cpu_count() or 1))


def _physical_cores(cpus: set[int]) -> set[str]:
    """One key a physical core, so that two hyper-threads of one core count once."""
    cores = set()
    for cpu in cpus:
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings)
    return cores


def _cpu_quota() -> float | None:
    """CPUs that the cgroup's quota pays for (v2, then v1), or None where there is none."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else float(quota) / float(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = float(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        period_us = float(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    except (OSError, ValueError):
        return None
