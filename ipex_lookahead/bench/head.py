"""What a drafting head would bring: its costs are measured on random weights of a shape, its acceptance is given.

Speed without the weights: a model's tokens a step follow from how often a head's drafts are right, which is published,
and from what steps and drafts cost, which is measured here. Such figures are replayed, not measured.

A model that does not fit is measured with fewer layers, whole periods of their kinds: what a step spends in layers,
phase by phase, counts as many times as the model has more of them; embedding, lm_head and the head for drafting, which
are there as they are, count once.
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
from ipex_lookahead.config import DRAFT_VOCAB
from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.machine import machine_memory
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import get_format
from ipex_lookahead.system.terminal import counted

OUTSIDE = ("embedding", "head")
"""Phases of a step that are in no layer."""
SHARE = 0.5
"""Of the memory, what weights may take."""
LEAST_LAYERS = 4
"""An EAGLE-3 head reads the states of three."""
WIDE = (8, 12, 16)
"""Rows that are measured beside those of the head's drafts: free sources may draft trees."""
COPIED = 3
"""Tokens of a copy that the head is timed behind."""


def tokens_a_step(acceptance: Sequence[float]) -> list[float]:
    """Tokens that a step with 1, 2, ... drafted tokens emits, each being right so often where those before it are."""
    return [1 + reached for reached in accumulate(accumulate(acceptance, mul))]


def period(spec: ModelSpec) -> int:
    """After how many layers the same kinds come again; of a model in which they do not, all of its layers."""
    kinds = [
        (getattr(layer.mixer, "window", None), *(tensor.shape for _, tensor in named_tensors(layer)))
        for layer in spec.layers
    ]
    total = len(kinds)
    return next(n for n in range(1, total + 1) if total % n == 0 and kinds == kinds[:n] * (total // n))


def layers_that_fit(spec: ModelSpec, low_bit: str, memory: int) -> int:
    """Whole periods of the model's layers that take at most so many bytes with what is beside them; at least one."""

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
    """What steps and drafts cost, and with given acceptance bring, with all of the head's vocabulary and with a part.

    Medians over ``repeat`` rounds, each of which measures everything once. A head catches up on as many rows as a step
    is to emit. Random routers send all rows of a mixture nearly the same way, so the experts that rows need which know
    nothing of each other are added, at the rate at which a step of one row reads: rows of a text need fewer.

    ``shape`` is one whose family has a block for drafting, or that :mod:`ipex_lookahead.bench.drafters` knows a head
    of; ``acceptance`` says how often the 1st, 2nd, ... drafted token is right where those before it are, 0 to 1.
    ``drafter_low_bit`` is the format of the head's own matrices, by default what models of 4 bits draft with.
    ``layers`` of the model are measured, a multiple of :func:`period`; None: as many as fit into half of the memory.
    The other arguments are those of ``bench.step.measure``.

    Returns:
        ``rows``, by drafted tokens: tokens a step, milliseconds, and the speed beside plain decoding; and ``costs``,
        which ``bench replay`` takes: seconds by rows, and by vocabulary what drafting takes, seconds.

    Raises InputError for a shape without such a head, rates outside 0 to 1, and layers that are no whole periods.
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
    # Behind as many rows as a step emits, and for the price by token behind one.
    ways = [(n, round(tokens), 0) for n, tokens in enumerate(emitted, 1)] + [(1, 1, 0), (most, 1, 0), (1, 1, COPIED)]
    drafts: dict[tuple[str, int, int, int], list[float]] = {(name, *way): [] for name in heads for way in ways}
    for done in range(repeat + 1):  # the first warms up
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
    """Times steps of a model, of which each layer counts ``scale`` times, and drafts of its heads."""

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
        """Seconds; of more rows than one with the states kept that a head reads."""
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
        """Seconds that reading the experts takes which rows of random weights did not need, and independent ones do."""
        mixtures, facts = self._engine.spec.mixtures, self._engine.describe()
        apart = sum((count := len(one.experts)) * (1 - (1 - one.used / count) ** rows) for one in mixtures)
        more = max(0.0, apart - self._experts[rows]) * float(facts["expert_bytes"]) / float(facts["step_bytes"])
        return (1 + self._more) * more * self._alone

    def draft(self, name: str, count: int, emitted: int, copied: int) -> float:
        """Seconds for so many tokens, the rows before them included, which the head has not seen yet."""
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
