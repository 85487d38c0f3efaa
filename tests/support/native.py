"""What tests of the native engine share: loading a checkpoint, chains of rows, running and keeping them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ipex_lookahead
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.weights import WeightPlan


def program_root() -> Path:
    """Where a program of ours starts that imports this package and these tests: under sanitizers not the repository."""
    imported, here = Path(ipex_lookahead.__file__).parents[1], Path(__file__).parents[2]
    return imported if (imported / "tests").is_dir() else here


def load(
    path: Path, low_bit: str | None = None, threads: int = 1, kv_cache: str = "fp16", **plan: object
) -> NativeEngine:
    checkpoint = open_checkpoint(path)
    spec = checkpoint.spec
    weights = WeightPlan(low_bit, head=spec.head_weight.name, **plan)  # type: ignore[arg-type]
    return NativeEngine.load(checkpoint, spec, weights, threads=threads, kv_cache=kv_cache)


def chain(n: int) -> np.ndarray:
    return np.arange(-1, n - 1, dtype=np.int32)


def ids_of(engine: NativeEngine, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, engine.vocab_size, n).astype(np.int32)


def run(engine: NativeEngine, cache: object, tokens: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
    """Logits of every row; nothing is kept."""
    parents = chain(len(tokens)) if parents is None else np.asarray(parents, dtype=np.int32)
    out = engine.forward(Batch([cache], [len(tokens)], tokens, parents, OutputRequest(logits=True)))  # type: ignore[list-item]
    assert out.logits is not None
    assert (out.argmax == out.logits.argmax(axis=1)).all()
    return out.logits


def one_by_one(engine: NativeEngine, tokens: np.ndarray) -> np.ndarray:
    cache, rows = engine.new_cache(), []
    for token in tokens:
        rows.append(run(engine, cache, token[None]))
        cache.keep([0])
    return np.concatenate(rows)
