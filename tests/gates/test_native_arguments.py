"""Whatever is handed to anything bound in the native core: a result or an exception of an expected kind, no signal.

The calls are made by ``tests.support.native_arguments`` in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from tests.gates import cases, seed
from tests.support.native import program_root

AT_ONCE = cases(2_000, 200_000)
"""Calls with several strange arguments, besides those with one, which are all tried."""


def test_everything_that_is_bound_is_tried() -> None:
    from tests.support.native_subjects import GOOD, bound

    assert bound() == set(GOOD), "native_subjects.GOOD needs right arguments for each name that is bound"


def test_no_arguments_end_the_process(tmp_path: Path) -> None:
    last = tmp_path / "last"
    program = [sys.executable, "-m", "tests.support.native_arguments", str(last), str(seed()), str(AT_ONCE)]
    limit = 400 + AT_ONCE // 100
    try:
        done = subprocess.run(program, cwd=program_root(), capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        pytest.fail(f"no end of {last.read_text().strip()}")
    assert done.returncode == 0, (
        f"status {done.returncode}; the last call was {last.read_text().strip()}\n{done.stderr}"
    )
    ends = json.loads(done.stdout)
    print(ends)
    assert ends["a result"] > 1000
    assert min(ends[kind] for kind in ("TypeError", "ValueError", "AttributeError", "MissingWeightError")) > 100
