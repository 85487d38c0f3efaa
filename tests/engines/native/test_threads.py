"""One pool of threads a process: models share it, take turns, and compute what each computes alone."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from tests.support.native import ids_of, load, one_by_one, program_root

COUNT = """
import os, sys
from pathlib import Path
from ipex_lookahead.engines.native.linear import LinearPool
from tests.support.forks import decoder, linear

def threads():
    return len(os.listdir("/proc/self/task"))

before, folder = threads(), Path(sys.argv[1])
models = [make(folder, n) for make, n in ((decoder, 3), (decoder, 2), (linear, 3), (decoder, 1), (linear, 2))]
for model in 2 * models:
    model()
print(threads() - before)
"""


@pytest.mark.programs
def test_models_share_their_threads(folder: Path) -> None:
    """Two besides the caller's, as the largest number asked for says, for loading, quantising and steps of all."""
    program = [sys.executable, "-c", COUNT, str(folder)]
    done = subprocess.run(program, cwd=program_root(), capture_output=True, text=True, timeout=400, check=True)
    assert done.stdout == "2\n"


def test_models_used_at_once_compute_what_each_does_alone(folder: Path) -> None:
    """A target and its draft model in two generations each, say: more callers than cores, jobs narrow and wide."""
    engines = [load(folder, low_bit, threads) for low_bit, threads in (("sym_int8", 3), ("sym_int4", 2), (None, 1))]
    jobs = [(engine, ids_of(engine, 40, seed=seed)) for engine in engines for seed in range(3)]
    expected = [one_by_one(engine, tokens).tobytes() for engine, tokens in jobs]
    with ThreadPoolExecutor(6) as callers:
        assert list(callers.map(lambda job: one_by_one(*job).tobytes(), jobs)) == expected
