"""Importance matrices made by hand, of both kinds, with the offset of every field."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from tests.support.gguf_bytes import ARRAY, STRING, U32, Entry, GgufBytes, Tensor, build

Values = Mapping[str, tuple[list[float], int]]
"""Name of a tensor -> mean squares of its inputs, and the number of tokens (GGUF) or calls."""

ENTRIES: list[Entry] = [
    ("general.type", STRING, "imatrix"),
    ("imatrix.datasets", ARRAY, (STRING, ["a.txt", "b.txt"])),
    ("imatrix.chunk_count", U32, 3),
    ("imatrix.chunk_size", U32, 512),
]


def tensors_of(values: Values, experts: int = 1) -> list[Tensor]:
    """Sums and counts, as llama-imatrix writes them."""
    made: list[Tensor] = []
    for name, (means, count) in values.items():
        sums = (np.array(means, np.float32) * np.float32(count)).astype("<f4")
        made.append((f"{name}.in_sum2", (len(means) // experts, experts), 0, sums.tobytes()))
        made.append((f"{name}.counts", (1, experts), 0, np.full(experts, count, "<f4").tobytes()))
    return made


def gguf_kind(values: Values, experts: int = 1) -> GgufBytes:
    return build(ENTRIES, tensors_of(values, experts))


def older_kind(values: Values, dataset: str | None = "a.txt") -> GgufBytes:
    """Fields: ``entries``; for a name N ``N:length N:name N:calls N:count N:data``; ``chunks text:length text``."""
    made = GgufBytes()
    made.put("entries", struct.pack("<i", len(values)))
    for name, (means, calls) in values.items():
        made.put(f"{name}:length", struct.pack("<i", len(name.encode())))
        made.put(f"{name}:name", name.encode())
        made.put(f"{name}:calls", struct.pack("<i", calls))
        made.put(f"{name}:count", struct.pack("<i", len(means)))
        made.put(f"{name}:data", (np.array(means, np.float32) * np.float32(max(calls, 1))).astype("<f4").tobytes())
    if dataset is not None:
        made.put("chunks", struct.pack("<i", 3))
        made.put("text:length", struct.pack("<i", len(dataset.encode())))
        made.put("text", dataset.encode())
    return made
