"""The words that other programs' own packers make of some codes, against those that the tests' folders have.

Recorded with AutoAWQ 0.2.9 (WQLinear_GEMV, WQLinear_GEMVFast) and GPTQModel 7.7.0 (its packer of three bits), as the
first half of the SHA-256 of each tensor's bytes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from tests.support.quantized_folders import Groups, awq_gemv, awq_gemv_fast, words


def codes(bits: int, rows: int, columns: int) -> np.ndarray[Any, Any]:
    i, j = np.indices((rows, columns))
    return ((i * 7 + j * 3 + i * j // 5) % (1 << bits)).astype(np.int64)


def digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]


@pytest.mark.parametrize(
    ("pack", "recorded"),
    [
        (
            awq_gemv,
            "d6bcfbadd46caafeb98ede628665a5c3 c358c2ee45f5ee6d5767fcc3cc03f04e 53e845bbd4875a502238d40777eab5d0",
        ),
        (
            awq_gemv_fast,
            "2cf61eff6d47dc84e46fb0d76741a7b5 114ad02cb0fa1793c2ceac5bf3543cc8 56f97f7b214df6ed301139689a6a6585",
        ),
    ],
)
def test_autoawq(pack: Any, recorded: str) -> None:
    """16 outputs, 192 inputs in groups of 64, scales of 0.25 and zero points of 8."""
    scales, zeros = np.full((16, 3), 0.25, np.float16), np.full((16, 3), 8)
    made = pack(Groups(codes(4, 16, 192), scales, zeros, np.arange(192) // 64), 64).tensors
    assert " ".join(digest(made[part]) for part in ("qweight", "qzeros", "scales")) == recorded


def test_gptqmodels_three_bits() -> None:
    assert digest(words(codes(3, 64, 8).T, 3).T) == "200c09ba6d7e4fb07c62de9ccf51feca"
