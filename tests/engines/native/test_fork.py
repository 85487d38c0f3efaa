"""Programs fork: a child of a process whose core has threads computes, deletes and exits, and never hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from tests.gates import cases
from tests.support.forks import DEEDS, STATES
from tests.support.native import program_root

TIMES = cases(3, 60)
"""Children for each state of the threads and each deed; a longer run looks for what happens now and then."""


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("subject", ["decoder", "linear"])
@pytest.mark.programs
def test_a_child_never_hangs(subject: str, threads: int, folder: Path) -> None:
    program = [sys.executable, "-m", "tests.support.forks", subject, str(folder), str(threads), str(TIMES)]
    limit = 60 + 5 * len(STATES) * len(DEEDS) * TIMES  # the parent must not hang either
    done = subprocess.run(program, cwd=program_root(), capture_output=True, text=True, timeout=limit, check=False)
    assert (done.returncode, done.stdout) == (0, f"{len(STATES) * len(DEEDS) * TIMES} children\n"), done.stderr
