"""Limits of control groups, of version 1 and 2, the process's own and those above it, read from a tree that is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipex_lookahead.system import cgroups
from ipex_lookahead.system.cgroups import cpu_quota, memory_limit

V2 = "29 23 0:26 {top} /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 32 0:30 {top} /sys/fs/cgroup/{name} rw,nosuid shared:9 - cgroup cgroup rw,{name}"
OTHER = "22 27 0:20 / /proc rw,nosuid shared:14 - proc proc rw\nnonsense\n- cgroup2\n"


def tree(root: Path, groups: str, mounts: str) -> None:
    """A root in which the process is in these groups, and sees these mounts."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(f"{OTHER}{mounts}\n")


def put(root: Path, **named: str) -> None:
    """``put(root, **{"a.slice/cpu.max": "max 100000"})`` below the control groups."""
    for name, text in named.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("own", "slice_", "top", "expected"),
    [
        ("max 100000", "max 100000", None, None),
        ("150000 100000", "max 100000", None, 1.5),
        ("max 100000", "400000 100000", None, 4.0),
        ("300000 100000", "200000 100000", None, 2.0),
        ("300000 100000", "max 100000", "50000 100000", 0.5),
        (None, "125000 50000", None, 2.5),
        ("nonsense", "0 100000", "100000 0", None),
        ("", "-1 100000", "1 2 3", None),
    ],
)
def test_the_tightest_quota_on_the_way_up_counts(
    own: str | None, slice_: str, top: str | None, expected: float | None, tmp_path: Path
) -> None:
    """``CPUQuota=`` of a slice stands above the service whose own group has none."""
    tree(tmp_path, "0::/work.slice/job.service\n", V2.format(top="/"))
    for folder, text in (("work.slice/job.service/", own), ("work.slice/", slice_), ("", top)):
        if text is not None:
            put(tmp_path, **{f"{folder}cpu.max": text})
    put(tmp_path, **{"other.slice/cpu.max": "10000 100000"})
    assert cpu_quota(tmp_path) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"a/b/memory.max": "max", "a/memory.max": "max"}, None),
        ({"a/b/memory.max": "max", "a/memory.max": "1073741824"}, 1 << 30),
        ({"a/b/memory.max": "2147483648", "a/memory.high": "1073741824"}, 1 << 30),
        ({"a/b/memory.max": "0"}, None),
        ({"a/c/memory.max": "4096"}, None),
    ],
)
def test_the_tightest_limit_on_memory_counts(files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    tree(tmp_path, "0::/a/b\n", V2.format(top="/"))
    put(tmp_path, **files)
    assert memory_limit(tmp_path) == expected


def version_1(root: Path, groups: str, top: str = "/") -> None:
    tree(root, groups, "\n".join(V1.format(name=name, top=top) for name in ("cpu,cpuacct", "memory", "cpuset")))


def test_version_1_has_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    version_1(tmp_path, "5:memory:/m/job\n4:cpuset:/\n3:cpu,cpuacct:/c/job\n1:name=systemd:/x\n0::/y\n")
    put(
        tmp_path,
        **{
            "cpu,cpuacct/c/job/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/c/job/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/c/cpu.cfs_quota_us": "350000",
            "cpu,cpuacct/c/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/m/job/cpu.cfs_quota_us": "10000",
            "cpu,cpuacct/m/job/cpu.cfs_period_us": "100000",
            "memory/m/job/memory.limit_in_bytes": "9223372036854771712",
            "memory/m/memory.limit_in_bytes": "536870912",
            "memory/c/memory.limit_in_bytes": "4096",
        },
    )
    assert cpu_quota(tmp_path) == 3.5
    assert memory_limit(tmp_path) == 512 << 20


def test_a_container_without_a_name_space_sees_its_own_group_at_the_mounts_top(tmp_path: Path) -> None:
    version_1(tmp_path, "2:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc/inner\n", "/docker/abc")
    put(
        tmp_path,
        **{
            "cpu,cpuacct/inner/cpu.cfs_quota_us": "200000",
            "cpu,cpuacct/inner/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/cpu.cfs_quota_us": "150000",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "4096000",
        },
    )
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (1.5, 4096000)


@pytest.mark.parametrize(("group", "top"), [("/../other", "/"), ("/a", "/.."), ("/docker/x", "/docker/y"), ("", "/")])
def test_of_a_group_that_the_mount_does_not_show_its_top_counts(group: str, top: str, tmp_path: Path) -> None:
    tree(tmp_path, f"0::{group}\n", V2.format(top=top))
    put(tmp_path, **{"cpu.max": "250000 100000"})
    (tmp_path / "sys/fs/cpu.max").write_text("1 100000")
    assert cpu_quota(tmp_path) == 2.5


def test_a_mixed_system_has_both_versions(tmp_path: Path) -> None:
    mounts = [V2.format(top="/").replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), V1.format(name="cpu", top="/")]
    tree(tmp_path, "1:cpu:/a\n0::/b\n", "\n".join(mounts))
    put(tmp_path, **{"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"})
    assert cpu_quota(tmp_path) == 3.0
    put(tmp_path, **{"unified/b/cpu.max": "200000 100000"})
    assert cpu_quota(tmp_path) == 2.0


def test_blanks_in_a_path_are_octal(tmp_path: Path) -> None:
    tree(tmp_path, "0::/a job\n", V2.format(top="/").replace("/sys/fs/cgroup", "/sys/fs/c\\040g"))
    folder = tmp_path / "sys/fs/c g/a job"
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text("700000 100000")
    assert cpu_quota(tmp_path) == 7.0


def test_without_groups_there_are_no_limits(tmp_path: Path) -> None:
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (None, None)
    tree(tmp_path, "", "")
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (None, None)


def test_those_of_this_machine_can_be_read() -> None:
    assert (cpu_quota() or 1.0) > 0
    assert (memory_limit() or 1) > 0


@pytest.mark.parametrize(("limit", "expected"), [(None, 8 << 30), (1 << 60, 8 << 30), (3 << 30, 3 << 30)])
def test_memory_is_the_machines_or_what_the_groups_allow(
    limit: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "memory_limit", lambda: limit)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2 << 20}.get)
    assert cgroups.machine_memory() == expected
