"""The speed of a drafting head for given acceptance rates, from costs measured on random weights of a shape.

Acceptance rates of heads are published; the costs of steps and drafts are measured here. A model that does not fit into
memory is measured with fewer layers, whole periods of their kinds. The time of the layers is extrapolated to all
layers; embedding, lm_head and the drafting head count once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.architectures.spec import named_tensors
from ipex_lookahead.bench.drafters import drafter_of
from ipex_lookahead.bench.routing import trace_experts
from ipex_lookahead.config import DRAFT_VOCAB
from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import get_format
from ipex_lookahead.system.cgroups import machine_memory
from ipex_lookahead.system.terminal import counted

OUTSIDE = ("embedding", "head")
"""Phases of a step outside of the layers."""
SHARE = 0.5
"""Largest share of the memory for weights."""
LEAST_LAYERS = 4
"""An EAGLE-3 head reads the hidden states of three layers."""
WIDE = (8, 12, 16)
"""Further numbers of rows to measure, for n-gram trees."""
COPIED = 3
"""Copied tokens before a timed draft."""


def tokens_a_step(acceptance: Sequence[float]) -> list[float]:
    """Return the expected tokens of a step with 1, 2, ... drafted tokens for given conditional acceptance rates."""
    return [1 + reached for reached in accumulate(accumulate(acceptance, mul))]


def period(spec: ModelSpec) -> int:
    """Return the number of layers after which their kinds repeat, or the number of all layers."""
    kinds = [
        (getattr(layer.mixer, "window", None), *(tensor.shape for _, tensor in named_tensors(layer)))
        for layer in spec.layers
    ]
    total = len(kinds)
    return next(n for n in range(1, total + 1) if total % n == 0 and kinds == kinds[:n] * (total // n))


def layers_that_fit(spec: ModelSpec, low_bit: str, memory: int) -> int:
    """Return the number of layers, in whole periods and at least one, that fit into ``memory`` bytes with the rest."""

    def weights(part: Any) -> int:
        return sum(prod(tensor.shape) for _, tensor in named_tensors(part) if tensor.is_matrix)

    total, every = len(spec.layers), period(spec)
    inside = sum(map(weights, spec.layers))
    each = inside * every // total
    fit = int((memory * 8 / get_format(low_bit).bits - (weights(spec) - inside)) // each)
    least = -(-LEAST_LAYERS // every)
    return min(total, every * max(least, fit))


def measure_head(
    shape: str,
    acceptance: Sequence[float],
    low_bit: str = "sym_int4",
    *,
    head_low_bit: str | None = None,
    drafter_low_bit: str = "sym_int8",
    layers: int | None = None,
    context: int = 128,
    threads: int | None = None,
    kv_cache: str = "fp16",
    repeat: int = 9,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure the costs of steps and drafts, and return the speed, with the full and with a smaller draft vocabulary.

    Results are medians over ``repeat`` rounds, each of which measures everything once. Before a draft, the head
    processes the emitted tokens of the step. Random routers choose nearly the same experts for all rows; the time to
    read the further experts of a routing trace (:mod:`ipex_lookahead.bench.routing`) is added.

    ``shape`` has a block for drafting or a head in :mod:`ipex_lookahead.bench.drafters`. ``acceptance`` are the
    acceptance rates of the 1st, 2nd, ... drafted token if those before it are accepted, 0 to 1. ``drafter_low_bit`` is
    the format of the head's own matrices. ``layers`` is the number of layers to measure, a multiple of :func:`period`;
    by default all that fit into half of the memory. The other arguments are those of ``bench.step.measure``.

    Returns:
        ``rows``, by drafted tokens: tokens per step, milliseconds, and the ratio to plain decoding; and ``costs`` for
        ``bench replay``: seconds of a step by rows, and seconds of drafts by vocabulary.

    Raises InputError for a shape without a head, rates outside 0 to 1, and layers that are not whole periods.
    """
    if not acceptance or not all(0 <= rate <= 1 for rate in acceptance):
        raise InputError(argument="acceptance", got=list(acceptance), allowed="rates from 0 to 1, one a drafted token")
    _, _, whole = drafter_of(shape)
    total, every = len(whole.layers), period(whole)
    if layers is None:
        layers = layers_that_fit(whole, low_bit, int(SHARE * machine_memory()))
    elif not LEAST_LAYERS <= layers <= total or layers % every:
        allowed = f"a multiple of {every} from {LEAST_LAYERS} to {total}: {shape}'s kinds of layers come in that order"
        raise InputError(argument="layers", got=layers, allowed=allowed)
    kind, spec, target = drafter_of(shape, layers)
    report(f"making random weights of {counted(layers, 'layer')}")
    engine = NativeEngine.random(target, low_bit, head_low_bit=head_low_bit, threads=threads, kv_cache=kv_cache)
    heads = {
        name: NativeHead.random(spec, drafter_low_bit, engine, threads=threads, draft_vocab=words)
        for name, words in (("full", target.vocab), ("cut", DRAFT_VOCAB))
    }
    bench = _Bench(engine, heads, context, total / layers)
    most, emitted = len(acceptance), tokens_a_step(acceptance)
    rows_of = sorted({*range(1, most + 2), *(rows for rows in WIDE if rows > most + 1)})
    steps: dict[int, list[float]] = {rows: [] for rows in rows_of}
    # After the rows that a step emits, and for the price of a token after one row.
    ways = [(n, round(tokens), 0) for n, tokens in enumerate(emitted, 1)] + [(1, 1, 0), (most, 1, 0), (1, 1, COPIED)]
    drafts: dict[tuple[str, int, int, int], list[float]] = {(name, *way): [] for name in heads for way in ways}
    for done in range(repeat + 1):  # round 0 is the warm-up
        report(f"round {done} of {counted(repeat, 'round')}")
        for rows, times in steps.items():
            times.append(bench.step(rows))
        for way, times in drafts.items():
            times.append(bench.draft(*way))
    took = {rows: median(times[1:]) + bench.more_experts(rows) for rows, times in steps.items()}
    drafting = {way: median(times[1:]) for way, times in drafts.items()}
    found = []
    for count, tokens_each in enumerate(emitted, 1):
        row = {"drafted": count, "tokens": tokens_each, "step_ms": 1e3 * took[count + 1]}
        for name in heads:
            seconds = drafting[name, count, round(tokens_each), 0]
            row[f"{name}_ms"] = 1e3 * seconds
            row[f"{name}_speed"] = tokens_each * took[1] / (took[count + 1] + seconds)
        found.append({**row, "one_row_ms": 1e3 * took[1]})
    return {
        "kind": kind,
        "acceptance": list(acceptance),
        "drafter_low_bit": drafter_low_bit,
        **{fact: engine.describe()[fact] for fact in ("isa", "threads")},
        "context": context,
        "layers": total,
        "measured_layers": layers,
        "rows": found,
        "costs": {
            "rows": rows_of,
            "seconds": [*accumulate((took[rows] for rows in rows_of), max)],  # more rows never cost less
            "heads": {
                name: {
                    "words": len(head.ids),
                    "first": (first := drafting[name, 1, 1, 0]),
                    "each": max(drafting[name, most, 1, 0] - first, 0.0) / max(most - 1, 1),
                    "copied": max(drafting[name, 1, 1, COPIED] - first, 0.0) / COPIED,
                }
                for name, head in heads.items()
            },
        },
    }


class _Bench:
    """Times steps of a model, with the time of its layers multiplied by ``scale``, and drafts of its heads."""

    def __init__(self, engine: NativeEngine, heads: dict[str, NativeHead], context: int, scale: float) -> None:
        self._engine, self._heads, self._context, self._more = engine, heads, context, scale - 1
        self._wants = OutputRequest(timings=scale != 1)
        self._followed = {name: engine.new_cache() for name in heads}
        for name, head in heads.items():
            head.follow(self._followed[name])
            self._followed[name].raw.fill_blank(context)
        self._plain = engine.new_cache(blank=context)
        self._alone, self._experts = float("inf"), {1: 0}

    def step(self, rows: int) -> float:
        """Return the seconds of a step; with several rows it keeps the hidden states for a head."""
        batch = chain(self._plain if rows == 1 else self._followed["cut"], self._tokens(rows), self._wants)
        started = perf_counter()
        output = self._engine.forward(batch)
        seconds = perf_counter() - started
        self._experts[rows] = output.experts
        if rows == 1:
            self._alone = min(self._alone, seconds)
        inside = sum(phase.seconds for phase in output.timings or () if phase.name not in OUTSIDE)
        return seconds + self._more * inside

    def more_experts(self, rows: int) -> float:
        """Return the seconds to read the experts that rows of a text need in addition to the measured ones."""
        facts = self._engine.describe()
        expected = trace_experts(self._engine.spec, rows)
        more = max(0.0, expected - self._experts[rows]) * float(facts["expert_bytes"]) / float(facts["step_bytes"])
        return (1 + self._more) * more * self._alone

    def draft(self, name: str, count: int, emitted: int, copied: int) -> float:
        """Return the seconds of a draft of ``count`` tokens after ``emitted`` rows that are new to the head."""
        cache = self._followed[name]
        self._engine.forward(chain(cache, self._tokens(emitted)))
        cache.keep(list(range(emitted)))
        started = perf_counter()
        self._heads[name].draft(cache, 0, count, copied=[0] * copied)
        seconds = perf_counter() - started
        cache.crop(self._context)
        return seconds

    def _tokens(self, rows: int) -> Any:
        vocab = self._engine.vocab_size
        return (np.arange(rows) * max(1, vocab // rows) % vocab).astype(np.int32)
