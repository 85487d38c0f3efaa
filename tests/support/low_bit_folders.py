"""Weights in several formats, saved as a low-bit folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ipex_lookahead.checkpoints import save
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.formats.base import PackedWeight
from tests.support.tiny import TinyLlama

CONFIG = {key: value for key, value in TinyLlama().config("float32").items() if key != "torch_dtype"}
LOW_BIT = {"low_bit": "sym_int4", "group_size": 64, "mixed_precision": False}


def weight(kind: str, shape: tuple[int, ...], group: int, seed: int) -> PackedWeight:
    """Random bits in a format, in the layout of formats/base.py."""
    rng = np.random.default_rng(seed)
    if group == 0:
        codes: Any = rng.standard_normal(shape).astype(np.float32)
        return PackedWeight(kind, shape, codes if kind == "fp32" else codes.astype(np.float16).view(np.uint16))
    blocks, groups = -(-shape[1] // 32), -(-shape[1] // group)
    if kind == "sym_int8":
        codes = rng.integers(-127, 128, (shape[0], blocks * 32), np.int8)
    else:
        codes = rng.integers(0, 256, (shape[0], blocks * 16), np.uint8)
    scales, minimums = rng.standard_normal((2, shape[0], groups)).astype(np.float16).view(np.uint16)
    return PackedWeight(kind, shape, codes, group, scales, minimums if kind == "asym_int4" else None)


WEIGHTS = {
    "model.embed_tokens.weight": weight("sym_int8", (96, 64), 32, 0),
    "ragged.weight": weight("sym_int4", (5, 172), 64, 1),
    "asym.weight": weight("asym_int4", (7, 100), 32, 2),
    "bits.weight": weight("bf16", (3, 9), 0, 3),
    "half.weight": weight("fp16", (3, 8), 0, 4),
    "model.norm.weight": weight("fp32", (64,), 0, 5),
}


def infos_of(weights: dict[str, PackedWeight]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(w.shape, w.format, w.group_size) for name, w in weights.items()}


def saved(folder: Path, given: dict[str, PackedWeight] = WEIGHTS, **more: Any) -> Path:
    arguments: dict[str, Any] = {
        "config": CONFIG,
        "generation_config": {"eos_token_id": [2, 3]},
        "infos": infos_of(given),
        "weights": iter(given.items()),
        "low_bit": LOW_BIT,
    }
    return save(folder, **(arguments | more))


def same(a: PackedWeight, b: PackedWeight) -> bool:
    pairs = ((a.codes, b.codes), (a.scales, b.scales), (a.minimums, b.minimums))
    return (a.format, a.shape, a.group_size) == (b.format, b.shape, b.group_size) and all(
        (x is None and y is None) or (x is not None and y is not None and x.dtype == y.dtype and np.array_equal(x, y))
        for x, y in pairs
    )
