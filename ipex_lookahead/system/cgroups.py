"""CPU and memory limits of this process's control groups (cgroups), including all parent groups.

A limit may be set in any of them: a container's, a systemd slice's (``CPUQuota=``) or a pod's. Both cgroup v2 and v1
are supported, also in mixed configurations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""Folder that contains ``proc`` and ``sys``."""
NO_LIMIT = 1 << 60
"""cgroup v1 represents "no memory limit" as the largest multiple of the page size."""


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the tightest CPU quota as a number of CPUs, or None."""
    return min((found for folder in _folders(root, "cpu") if (found := _quota(folder))), default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the tightest memory limit in bytes, or None."""
    return min((found for folder in _folders(root, "memory") if (found := _limit(folder))), default=None)


def machine_memory() -> int:
    """Return the machine's memory in bytes, or the limit of the control groups if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit()
    return physical if limit is None else min(physical, limit)


def _quota(folder: Path) -> float | None:
    """Return one group's quota: ``cpu.max`` is "QUOTA PERIOD" or "max PERIOD"; v1 has two files, and -1 for none."""
    words = _words(folder / "cpu.max")
    words = words or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1]) or None


def _limit(folder: Path) -> int | None:
    """Return one group's limit in bytes; above ``memory.high`` the kernel throttles processes."""
    words = [word for name in ("max", "high", "limit_in_bytes") for word in _words(folder / f"memory.{name}")]
    return min((int(word) for word in words if word.isdecimal() and 0 < int(word) < NO_LIMIT), default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups for a controller in all hierarchies, from its own to the root."""
    groups = _groups(root)
    for line in _lines(root / "proc/self/mountinfo"):
        where, _, what = line.partition(" - ")
        fields, kind = where.split(), what.split()
        if len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            group = groups.get("")
        elif kind[0] == "cgroup" and controller in kind[-1].split(","):
            group = groups.get(controller)
        else:
            continue
        if group is not None:
            mount, inside = root / _unescaped(fields[4]).lstrip("/"), _inside(group, _unescaped(fields[3]))
            yield from (mount / part for part in (inside, *inside.parents))


def _groups(root: Path) -> dict[str, str]:
    """Return v1 controller -> this process's group; the key "" is the v2 group."""
    found = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(","):
            found[name] = path
    return found


def _inside(group: str, shown: str) -> PurePosixPath:
    """Return the path of a group in a mount that shows ``shown`` and its subgroups; the mount's root if outside.

    Groups are outside in a container without its own cgroup namespace (the host's groups), and for mounts created
    outside the namespace (names begin with "..").
    """
    path, top = PurePosixPath(group), PurePosixPath(shown)
    if ".." in (*path.parts, *top.parts) or not path.is_relative_to(top):
        return PurePosixPath(".")
    return path.relative_to(top)


def _unescaped(path: str) -> str:
    """Decode a path in a kernel table: blanks and backslashes are octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def address_space() -> tuple[int | None, int | None]:
    """Return the soft and the hard limit of this process's address space in bytes (``ulimit -v``); None: no limit."""
    try:
        import resource
    except ImportError:
        return None, None
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_AS)
    )
    return soft, hard
