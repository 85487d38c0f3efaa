"""The physical cores and memory that this process may use, within the limits of its control groups."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ipex_lookahead.errors import InputError
from ipex_lookahead.system.cgroups import cpu_quota, machine_memory, memory_limit

MAX_THREADS = 1024


def default_threads() -> int:
    """Return ``IPEX_LOOKAHEAD_THREADS`` if set, else the number of physical cores within affinity and cgroup quota."""
    if (wanted := os.environ.get("IPEX_LOOKAHEAD_THREADS")) not in (None, ""):
        return check_threads(wanted, "IPEX_LOOKAHEAD_THREADS")
    cores = len(_physical_cores(_allowed_cpus()))
    quota = cpu_quota()
    # Rounded down: a thread beyond the quota is stopped in the middle of every step.
    return max(1, cores if quota is None else min(cores, int(quota)))


def free_memory() -> int:
    """Return the memory in bytes that this process can still use, as far as the system and its limits report it."""
    free = machine_memory()
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
        free = int(text.split("MemAvailable:")[1].split()[0]) * 1024
    limit = memory_limit()
    if limit is not None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
            free = min(free, limit - used)
    return max(0, free)


def peak_memory() -> int | None:
    """Return this process's peak resident memory in bytes; None if Linux does not report it.

    ``getrusage`` is not used: fork and exec hand its value on, so that a small process started by a large one would
    report the large one's. The kernel counts from the start, or from the last write to ``/proc/self/clear_refs``.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None


def check_threads(value: object, name: str = "threads") -> int:
    """Return ``value`` as a number of threads. Raises InputError outside 1 to 1024."""
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
    """Return one key per physical core: two hyper-threads of a core count once."""
    cores = set()
    for cpu in cpus:
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings)
    return cores
