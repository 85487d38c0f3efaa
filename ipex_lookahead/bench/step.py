"""One decoder step on random weights of a known model's shape: milliseconds by rows, beside the machine's roofs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.bench.shapes import shape_of
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.core import integer_peak, read_bandwidth
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.terminal import counted


def linear_operations(spec: ModelSpec) -> int:
    """Operations (a multiply-add is two) of all linear layers for one row, lm_head included; of experts the chosen."""
    weights = sum(prod(tensor.shape) for tensor in spec.tensors() if tensor.is_matrix)
    for mixture in spec.mixtures:
        one, idle = mixture.experts[0], len(mixture.experts) - mixture.used
        weights -= idle * sum(prod(part.weight.shape) for part in (one.gate, one.up, one.down) if part)
    return 2 * (weights if spec.tied else weights - spec.vocab * spec.hidden)


def measure(
    shape: str,
    low_bit: str = "sym_int4",
    rows: Sequence[int] = (1, 2, 4, 8, 16, 64),
    *,
    group_size: int = 32,
    head_low_bit: str | None = None,
    context: int = 128,
    threads: int | None = None,
    kv_cache: str = "fp16",
    repeat: int = 9,
    phases: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Medians over ``repeat`` rounds; each round takes every row count once, so that drift falls on all alike.

    Rows form a chain at ``context`` positions, and only the last of more than 64 rows has an output (a prompt).
    With ``phases`` as many rounds more are timed phase by phase; the clocks cost some hundredths of a small step.

    Raises:
        InputError: an unknown shape, rows below 1, or a context that with the rows exceeds the shape's.
    """
    spec = shape_of(shape)
    if not rows or min(rows) < 1 or context < 0 or context + max(rows) > spec.max_context:
        raise InputError(
            f"rows {list(rows)} at context {context} do not fit; rows start at 1, and both together end at "
            f"{spec.max_context}"
        )
    report("making random weights")
    engine = NativeEngine.random(
        spec, low_bit, group_size=group_size, head_low_bit=head_low_bit, threads=threads, kv_cache=kv_cache
    )
    facts = engine.describe()
    report("measuring the machine")
    # As large as the weights, within reason: a buffer that a cache holds would measure that cache.
    size = min(max(facts["weight_bytes"], 64 << 20), 1 << 30)
    bandwidth = read_bandwidth(size, facts["threads"])
    peak = 2 * integer_peak(facts["threads"])
    cache = engine.new_cache(blank=context)
    batches = {count: _batch(cache, count) for count in rows}
    times: dict[int, list[float]] = {count: [] for count in rows}
    experts = dict.fromkeys(rows, 0)
    for count in rows:
        report(f"warming up: {counted(count, 'row')}")
        experts[count] = engine.forward(batches[count]).experts
    for done in range(repeat):
        for count in rows:
            report(f"round {done + 1} of {repeat}: {counted(count, 'row')}")
            started = perf_counter()
            engine.forward(batches[count])
            times[count].append(perf_counter() - started)
    parts = {count: _phases(engine, batches[count], repeat) for count in rows} if phases else {}
    first = median(times[min(rows)])
    operations = linear_operations(spec)
    chosen = sum(mixture.used for mixture in spec.mixtures)

    def read(count: int) -> int:
        """Bytes that a step has to read."""
        more_experts = (experts[count] - chosen) * facts["expert_bytes"] if chosen else 0
        return int(facts["step_bytes"] + more_experts + context * facts["kv_bytes_per_token"])

    return {
        "shape": shape,
        "low_bit": low_bit,
        "head_low_bit": head_low_bit or low_bit,
        "group_size": group_size,
        "isa": facts["isa"],
        "threads": facts["threads"],
        "context": context,
        "kv_cache": kv_cache,
        "weight_bytes": facts["weight_bytes"],
        "step_bytes": facts["step_bytes"],
        "kv_bytes": context * facts["kv_bytes_per_token"],
        "bandwidth_gb_s": bandwidth / 1e9,
        "integer_peak_gops": peak / 1e9,
        "steps": [
            {
                "rows": count,
                "ms": 1e3 * median(times[count]),
                "ratio": median(times[count]) / first,
                "experts": experts[count],
                "gb_s": read(count) / median(times[count]) / 1e9,
                "gops": _row_operations(spec, operations, count) / median(times[count]) / 1e9,
                **({"phases": parts[count]} if phases else {}),
            }
            for count in rows
        ],
    }


def _phases(engine: NativeEngine, batch: Batch, repeat: int) -> list[dict[str, Any]]:
    """Medians of ``repeat`` steps for each kind of phases, in a step's order; ``between`` is what is in none of them.

    ``gb_s`` counts the weights that one row reads, and is 0 where there are none; ``waiting`` is the share of the first
    thread's time in which it waited for the others.
    """
    steps, wholes = [], []
    timed = replace(batch, wants=replace(batch.wants, timings=True))
    for _ in range(repeat):
        started = perf_counter()
        output = engine.forward(timed)
        wholes.append(perf_counter() - started)
        assert output.timings is not None
        steps.append(output.timings)
    found = []
    for kind in zip(*steps, strict=True):
        if not kind[0].count:
            continue
        seconds = median(one.seconds for one in kind)
        found.append(
            {
                "name": kind[0].name,
                "count": kind[0].count,
                "ms": 1e3 * seconds,
                "waiting": median(1 - one.busy / one.seconds for one in kind),
                "gb_s": kind[0].weight_bytes / seconds / 1e9,
            }
        )
    between = median(whole - sum(one.seconds for one in step) for whole, step in zip(wholes, steps, strict=True))
    return [*found, {"name": "between", "count": 1, "ms": 1e3 * between, "waiting": 0.0, "gb_s": 0.0}]


def _batch(cache: Any, rows: int) -> Batch:
    """Rows that may be rejected, or more than 64 of a prompt; in a mixture of experts they differ."""
    prompt = rows > 64
    want = np.array([rows - 1], dtype=np.int32) if prompt else None
    batch = chain(cache, np.arange(7, 7 + rows, dtype=np.int32), OutputRequest(want))
    return replace(batch, settled=[rows]) if prompt else batch


def _row_operations(spec: ModelSpec, operations: int, rows: int) -> int:
    """A prompt's lm_head is run for its last row only."""
    head = 2 * spec.vocab * spec.hidden
    return rows * (operations - head) + (rows if rows <= 64 else 1) * head
