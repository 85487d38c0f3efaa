"""What the control groups of this process allow it: processor time and memory, by its own group and all above it.

A limit may stand in any of them: a container's, that of a slice of systemd's (``CPUQuota=``), that of a pod around it.
Each is read where this process sees it, in version 2 and version 1, which a system may mix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""Where ``proc`` and ``sys`` are."""
NO_LIMIT = 1 << 60
"""Version 1 spells "no limit on memory" as the largest number of whole pages."""


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs that the tightest quota pays for; None where there is none."""
    return min((found for folder in _folders(root, "cpu") if (found := _quota(folder))), default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes of memory that the tightest limit allows; None where there is none."""
    return min((found for folder in _folders(root, "memory") if (found := _limit(folder))), default=None)


def _quota(folder: Path) -> float | None:
    """Of one group: ``cpu.max`` is "QUOTA PERIOD" or "max PERIOD"; version 1 has a file for each, and -1 for none."""
    words = _words(folder / "cpu.max")
    words = words or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1]) or None


def _limit(folder: Path) -> int | None:
    """Of one group, in bytes; from ``memory.high`` on the kernel holds its processes up."""
    words = [word for name in ("max", "high", "limit_in_bytes") for word in _words(folder / f"memory.{name}")]
    return min((int(word) for word in words if word.isdecimal() and 0 < int(word) < NO_LIMIT), default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's groups in every hierarchy with a controller, from its own up to the highest."""
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
    """Controller of version 1 -> this process's group in its hierarchy; "" -> that in the one of version 2."""
    found = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(","):
            found[name] = path
    return found


def _inside(group: str, shown: str) -> PurePosixPath:
    """Where a group lies in a mount that shows the groups from ``shown`` on; the mount's top for one outside of it.

    Outside are, in a container without a name space of its own, the groups of the host; and what a mount made outside
    of the name space shows, whose names begin with "..".
    """
    path, top = PurePosixPath(group), PurePosixPath(shown)
    if ".." in (*path.parts, *top.parts) or not path.is_relative_to(top):
        return PurePosixPath(".")
    return path.relative_to(top)


def _unescaped(path: str) -> str:
    """A path as the kernel tells it in a table: blanks and backslashes are octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def address_space() -> tuple[int | None, int | None]:
    """Bytes of addresses that this process may take, and to how many it may raise that itself (``ulimit -v``).

    None: no limit, or none on this system.
    """
    try:
        import resource
    except ImportError:
        return None, None
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_AS)
    )
    return soft, hard
