"""Blocks of GGUF's Q1_0 and Q2_0, which the gguf package does not decode, and their values by the definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.support.gguf_attacks import llama_of_256
from tests.support.gguf_bytes import build

Array = np.ndarray[Any, Any]


class Crumbs(NamedTuple):
    """A type: its number in the file, inputs in a block, bits of a code."""

    name: str
    number: int
    inputs: int
    bits: int

    @property
    def nbytes(self) -> int:
        return 2 + self.inputs * self.bits // 8

    def blocks(self, rows: int, columns: int, rng: np.random.Generator) -> Array:
        """Random codes, scales of either sign, uint8 [rows, bytes]."""
        found = rng.integers(0, 256, (rows, columns // self.inputs, self.nbytes), np.uint8)
        scales = (rng.standard_normal(found.shape[:2]) * 0.05).astype(np.float16)
        found[..., :2] = scales[..., None].view(np.uint8)
        return found.reshape(rows, -1)

    def values(self, rows: Array) -> Array:
        """Code by code, float32 [rows, columns]."""
        found = []
        for row in rows:
            line: list[float] = []
            for block in row.reshape(-1, self.nbytes):
                scale = float(block[:2].view(np.float16)[0])
                for i in range(self.inputs):
                    bit = i * self.bits
                    code = int(block[2 + bit // 8]) >> bit % 8 & (1 << self.bits) - 1
                    line.append(scale * ((2 * code - 1) if self.bits == 1 else (code - 1)))
            found.append(line)
        return np.array(found, np.float32)


Q1_0, Q2_0, Q2_0_OF_128 = Crumbs("Q1_0", 41, 128, 1), Crumbs("Q2_0", 42, 64, 2), Crumbs("Q2_0", 42, 128, 2)
ALL = (Q1_0, Q2_0, Q2_0_OF_128)


def write_crumbs(path: Path, kind: Crumbs, seed: int = 0) -> dict[str, Array]:
    """A tiny Llama whose matrices of 256 inputs are of that type; their blocks by GGUF's names."""
    rng = np.random.default_rng(seed)
    stored: dict[str, Array] = {}

    def of(name: str, dims: tuple[int, ...]) -> tuple[int, bytes]:
        stored[name] = kind.blocks(dims[1], dims[0], rng)
        return kind.number, stored[name].tobytes()

    path.write_bytes(bytes(build(*llama_of_256(of)).data))
    return stored
