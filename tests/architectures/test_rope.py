"""Frequencies of rotary positions: the nearest float32s, whatever the processor, beside mpmath and transformers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__ as features  # type: ignore[attr-defined]

from ipex_lookahead.architectures.rope import rope

THETAS = (2.0, 1e4, 100_000.0, 500_000.0, 1e6, 8e6)
SIZES = (2, 8, 64, 96, 128, 256)
SCALINGS = {
    "default": None,
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "truncate": False},
}  # fmt: skip


def config(theta: float, head_dim: int, scaling: dict[str, object] | None = None) -> dict[str, object]:
    return {"head_dim": head_dim, "rope_theta": theta, "rope_scaling": scaling, "max_position_embeddings": 16_384}


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("head_dim", SIZES)
def test_plain_frequencies_are_the_nearest_ones(theta: float, head_dim: int) -> None:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    with mpmath.workprec(200):
        powers = np.array([float(mpmath.mpf(theta) ** mpmath.mpf(float(one))) for one in exponents], np.float32)
    assert (rope(config(theta, head_dim)).frequencies == np.float32(1) / powers).all()


@pytest.mark.programs
def test_a_processor_without_vector_units_has_the_same() -> None:
    """Where numpy's own powers are others."""
    program = (
        "import numpy as np; from tests.architectures.test_rope import *; "
        "print((np.float32(5e5) ** np.linspace(0, 1, 64, dtype=np.float32)).tobytes().hex()); "
        "print([rope(config(t, d, s)).frequencies.tobytes().hex() "
        "for t in THETAS[1:] for d in SIZES[3:] for s in SCALINGS.values()])"
    )
    ours, numpys = set(), set()
    for disabled in ("", " ".join(features)):
        variables = {**os.environ, "NPY_DISABLE_CPU_FEATURES": disabled}
        run = [sys.executable, "-W", "ignore", "-c", program]
        lines = subprocess.run(run, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()
        numpys.add(lines[0])
        ours.add(lines[1])
    assert len(ours) == 1
    if "avx512f" in Path("/proc/cpuinfo").read_text():  # else both are the same here, and say nothing
        assert len(numpys) == 2
