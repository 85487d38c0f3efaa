"""Tiny families on the native engine: loading them, and serving their rows in every way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ipex_lookahead.architectures import model_types, spec_for
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.api import FINAL_NORM, Batch, OutputRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.weights import WeightPlan
from tests.gates import cases
from tests.support.family_table import CONTEXT, Variant, variants
from tests.support.native import chain

Ids = npt.NDArray[np.int32]


def some() -> list[tuple[str, Variant]]:
    """The families here, with their first two variants, or with all where the gates are long."""
    count = cases(2, 100)
    return [(model_type, variant) for model_type in model_types() for variant in variants(model_type)[:count]]


def each(of: list[tuple[str, Variant]]) -> pytest.MarkDecorator:
    """A test for each of them, named after it."""
    ids = [f"{model_type}-{variant.name}" for model_type, variant in of]
    return pytest.mark.parametrize(("model_type", "variant"), of, ids=ids)


def load(path: Path, low_bit: str | None = None, *, threads: int = 1, kv_cache: str = "fp16") -> NativeEngine:
    """The checkpoint on the native engine, with all the context that it has."""
    checkpoint = open_checkpoint(path)
    spec = spec_for(checkpoint.config, CONTEXT)
    plan = WeightPlan(low_bit, head=spec.head_weight.name)
    try:
        return NativeEngine.load(checkpoint, spec, plan, threads=threads, kv_cache=kv_cache)
    finally:
        checkpoint.close()


@contextmanager
def on(isa: str) -> Iterator[None]:
    """Engines that are made meanwhile run on that instruction set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPEX_LOOKAHEAD_ISA", isa)
        yield


def step(
    engine: NativeEngine,
    caches: Sequence[Any],
    tokens: Sequence[Ids],
    parents: Sequence[Ids],
    hidden: tuple[int, ...] = (),
    settled: Sequence[int] = (),
) -> list[Any]:
    """One step of several sequences: the logits [rows, vocab] of each; nothing is kept.

    With ``hidden``, as in ``OutputRequest``, these hidden states follow: [rows, vocab + states * hidden size].
    """
    counts = [len(each) for each in tokens]
    wants = OutputRequest(logits=True, hidden=hidden)
    output = engine.forward(
        Batch(list(caches), counts, np.concatenate(tokens), np.concatenate(parents), wants, settled)
    )
    assert output.logits is not None
    rows = np.concatenate([output.logits, *(output.hidden[layer] for layer in hidden if output.hidden)], 1)
    return np.split(rows, list(itertools.accumulate(counts))[:-1])


def every_state(engine: NativeEngine) -> tuple[int, ...]:
    """All hidden states that there are."""
    return (*range(len(engine.spec.layers) + 1), FINAL_NORM)


def in_chunks(
    engine: NativeEngine,
    ids: Ids,
    sizes: Sequence[int],
    neighbours: Sequence[Ids] = (),
    hidden: tuple[int, ...] = (),
) -> Any:
    """What ``step`` gives of a text served in pieces of ``sizes``, again and again, among rows of other sequences."""
    cache, others, rows, at = engine.new_cache(), [engine.new_cache() for _ in neighbours], [], 0
    for size in itertools.cycle(sizes):
        part = ids[at : at + size]
        beside = [each[at : at + max(1, size - 1)] for each in neighbours]
        beside = [each for each in beside if len(each)]
        # Its place among the neighbours changes from step to step.
        place = len(rows) % (len(beside) + 1)
        tokens = [*beside[:place], part, *beside[place:]]
        caches = [*others[: len(beside)][:place], cache, *others[: len(beside)][place:]]
        found = step(engine, caches, tokens, [chain(len(one)) for one in tokens], hidden)
        rows.append(found[place])
        for one, kept in zip(caches, tokens, strict=True):
            one.keep(list(range(len(kept))))
        at += len(part)
        if at >= len(ids):
            return np.concatenate(rows)
    raise AssertionError
