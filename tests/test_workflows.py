"""Workflows of GitHub Actions: fixed actions, commands that exist, limits on time and rights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
MAKE = re.compile(r'make (?P<target>[\w-]+|"\$TARGET") PYTHON=python')


def jobs(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values())


def targets(job: dict[str, Any]) -> list[str]:
    """The Makefile's targets that a job's steps run."""
    made = [MAKE.fullmatch(step["run"]) for step in job["steps"] if "run" in step]
    assert made, "no step runs a command"
    assert all(made), "every command is a target of make"
    matrix = job.get("strategy", {}).get("matrix", {}).get("target", [])
    return [name for one in made if one for name in (matrix if "$" in one["target"] else [one["target"]])]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_commands_exist_and_jobs_are_limited(file: Path) -> None:
    for job in jobs(file):
        assert set(targets(job)) <= TARGETS
        assert job["timeout-minutes"] <= 240
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_fixed_to_a_commit(file: Path) -> None:
    used = re.findall(r"uses: (.+)", file.read_text(encoding="utf-8"))
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_each_commit_runs_the_same_here_and_there() -> None:
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    ran = {name for job in jobs(ROOT / ".github" / "workflows" / "ci.yml") for name in targets(job)}
    assert ran == set(re.findall(r"^make ([\w-]+)$", commands, re.MULTILINE))
