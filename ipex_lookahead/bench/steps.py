"""Timed steps of a random model, for ``bench step``."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec, spec_for
from ipex_lookahead.bench.head import OUTSIDE, period
from ipex_lookahead.bench.routing import CASES, Routing
from ipex_lookahead.bench.shapes import config_of
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import EngineError, InputError


def first_layers(shape: str, whole: ModelSpec, layers: int) -> ModelSpec:
    """Return the spec of a shape's first layers. Raises InputError unless they are whole periods."""
    total, every = len(whole.layers), period(whole)
    if not 1 <= layers <= total or layers % every:
        allowed = f"a multiple of {every} up to {total}: {shape}'s kinds of layers come in that order"
        raise InputError(argument="layers", got=layers, allowed=allowed)
    return spec_for(config_of(shape, layers))


class Steps:
    """Times steps of an engine, in every case of routing; times and bytes of its layers are multiplied by ``scale``."""

    def __init__(self, engine: NativeEngine, routing: Routing | None, context: int, scale: float) -> None:
        self._engine, self._routing, self._scale = engine, routing, scale
        self._facts, self._context = engine.describe(), context
        self._cache = engine.new_cache(blank=context)
        self._times: dict[tuple[str, int], list[float]] = {}
        self._experts: dict[tuple[str, int], list[int]] = {}
        self._cases = CASES if routing else CASES[:1]
        self._head_bytes = 0
        if scale != 1:
            timed = engine.forward(self._timed(self.batch(1))).timings or ()
            self._head_bytes = sum(phase.weight_bytes for phase in timed if phase.name == "head")

    def batch(self, rows: int, case: str = CASES[0], window: int = 0) -> Batch:
        """Return the rows of a step."""
        tokens = None if self._routing is None else self._routing.tokens(case, window, rows)
        return step_batch(self._cache, rows, tokens)

    def warm_up(self, rows: int) -> None:
        """Run each case once. Raises EngineError if the routers do not choose the experts of the trace."""
        for case in self._cases:
            batch = self.batch(rows, case)
            found = self._engine.forward(batch).experts
            if self._routing is not None and found != (wanted := self._routing.experts(batch.tokens)):
                raise EngineError(
                    f"internal error: {rows} rows of the case {case!r} read {found} experts, but chose {wanted}",
                    hint='please report it with the output of "ipex-lookahead doctor"',
                )
            self._times[case, rows], self._experts[case, rows] = [], []

    def run(self, rows: int, window: int) -> None:
        """Time each case once."""
        for case in self._cases if rows <= 64 else self._cases[:1]:
            batch = self.batch(rows, case, window)
            batch = batch if self._scale == 1 else self._timed(batch)
            started = perf_counter()
            output = self._engine.forward(batch)
            seconds = perf_counter() - started
            inside = sum(phase.seconds for phase in output.timings or () if phase.name not in OUTSIDE)
            self._times[case, rows].append(seconds + (self._scale - 1) * inside)
            self._experts[case, rows].append(output.experts)

    def result(self, rows: int, case: str = CASES[0]) -> dict[str, Any]:
        """Return the median of the milliseconds, and the means of the experts and of the bytes that were read."""
        experts = fmean(self._experts[case, rows])
        mixtures = self._engine.spec.mixtures
        more = (experts - sum(mixture.used for mixture in mixtures)) * self._facts["expert_bytes"] if mixtures else 0.0
        keys = self._context * self._facts["kv_bytes_per_token"]
        return {
            "ms": 1e3 * median(self._times[case, rows]),
            "experts": round(self._scale * experts),
            "bytes": round(self.whole(self._facts["step_bytes"]) + self._scale * (more + keys)),
        }

    def cases(self, rows: int) -> dict[str, dict[str, Any]]:
        """Return the results of all cases; of a prompt that of the trace."""
        return {case: self.result(rows, case) for case in self._cases if self._times[case, rows]}

    def whole(self, step_bytes: int) -> int:
        """Return the bytes of weights that a row of all layers reads."""
        return round(step_bytes + (self._scale - 1) * (step_bytes - self._head_bytes))

    @staticmethod
    def _timed(batch: Batch) -> Batch:
        return replace(batch, wants=replace(batch.wants, timings=True))


def step_batch(cache: Any, rows: int, tokens: npt.NDArray[np.int32] | None = None) -> Batch:
    """Return rows that may be rejected, or of a prompt if there are more than 64. ``tokens``: None: any."""
    tokens = np.arange(7, 7 + rows, dtype=np.int32) if tokens is None else tokens
    prompt = rows > 64
    want = np.array([rows - 1], dtype=np.int32) if prompt else None
    batch = chain(cache, tokens, OutputRequest(want))
    return replace(batch, settled=[rows]) if prompt else batch
