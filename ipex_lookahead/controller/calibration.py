"""Measure what forwards of different numbers of rows take on this machine. Drafting pays or not by these ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.engines.api import Batch, Cache, Engine, OutputRequest, TimesPhases, WarmsUp
from ipex_lookahead.engines.prefill import chain

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 20, 24, 32)
"""Measured numbers of rows: each possible edge of a tile, as far as drafts go."""
COARSER = ((0.2, (1, 4, 16)), (0.01, (1, 2, 4, 5, 8, 16, 32)))
"""(seconds of a forward of one row, fewer numbers of rows for slower engines): a calibration takes 10 s at most."""
ROUNDS, MAX_ROUNDS = 5, 10
"""Rounds, and disturbed rounds: two do not show a disturbance (1.02 to 1.20 on an idle machine, 1.06 to 1.31 on a busy
one)."""
PATIENCE_SECONDS = 1.0
"""Time after which no round begins: forwards of slow engines last long enough to be measured once."""
WARM_UP, WARM_UP_SECONDS = 12, 0.04
"""Forwards of one row before the first round, two at least: 84 MB of weights on a Xeon took 4.9 ms, then 4.1, 3.4, 3.0,
2.7, 2.6, 2.2, and no less."""
IMPOSSIBLE = 2.0
"""Factor beyond which n rows cannot take longer than the n / m forwards of m rows that compute them. Disturbances and
libraries with a quick way for one row stay below it."""
NOISY = 1.35
"""Factor between rounds at which other processes had the machine (SmolLM2-135M, five rounds: 1.05 to 1.27 on an idle
machine, 1.42 to 1.78 next to a job at lower priority)."""
CONTEXT, CONTEXT_STEP, CONTEXT_BYTES = 1024, 256, 64 << 20
"""Positions at which attention is timed: a multiple of the step, at most the bytes of keys and values."""
CONTEXT_SECONDS = 0.3
"""Time after which no round of attention begins: five rounds take 0.15 to 0.4 s."""
SAME_ROWS = 8
"""Rows of one token, which read the experts of one row: the difference from n different tokens is the experts'
price. Also the rows at which attention's cost per row is measured."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured seconds of a forward with an empty cache.

    Attributes:
        rows: ascending, the first one is 1.
        seconds: for each of ``rows``.
        key_seconds: what each position of context adds.
        key_row_seconds: what each position of context adds for each row.
        experts: for each of ``rows`` the experts that were read, in all layers; empty for a model without.
        expert_seconds: what reading one more of them takes.
        all_experts: how many there are, in all layers.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    key_seconds: float = 0.0
    key_row_seconds: float = 0.0
    experts: tuple[int, ...] = ()
    expert_seconds: float = 0.0
    all_experts: int = 0


ASSUMED = Calibration((1, 2, 4, 5, 8, 16, 32), (1.0, 1.06, 1.18, 1.5, 1.75, 2.8, 5.0))
"""The shape of a CPU with int8 dot products, in units of one row's time; where nothing was measured."""


def calibrate(engine: Engine, *, patience: float = PATIENCE_SECONDS) -> tuple[Calibration, float]:
    """Measure forwards of different numbers of rows on a scratch cache, in rounds; each counts by its lower quartile.

    Rounds that are disturbed, or that no machine could have, are followed by more, and then each number of rows counts
    by its least time, cut to what is possible: other processes only add. Rounds alternate upward and downward, so that
    every forward follows one with nearly the same number of rows, as in a text. Engines that build kernels at the first
    step of a number of rows (``WarmsUp``) do so before the first round.

    Args:
        engine: the loaded engine.
        patience: seconds after which no round begins.

    Returns:
        The calibration, and the slowest round over the quickest, in the median over the numbers of rows; with a single
        round that of its forward of one row and the one before it. At least ``NOISY`` for a curve that had to be cut.
    """
    cache = engine.new_cache()
    most = min(ROWS[-1], engine.max_context)
    # All over the vocabulary: the first tokens of many are single bytes and marks, which may go to few experts.
    tokens = (np.arange(most) * max(1, engine.vocab_size // most) % engine.vocab_size).astype(np.int32)
    batches = {n: chain(cache, tokens[:n]) for n in range(1, most + 1)}
    began = perf_counter()
    _, counted = timed_forward(engine, batches[1])  # also wakes the threads
    warm = [timed_forward(engine, batches[1])[0]]
    while 1 + len(warm) < WARM_UP and perf_counter() - began < WARM_UP_SECONDS:
        warm.append(timed_forward(engine, batches[1])[0])
    grid = next((coarser for slow, coarser in COARSER if min(warm) > slow), ROWS)
    rows = tuple(n for n in grid if n <= most)
    same = max(n for n in rows if n <= SAME_ROWS)
    if counted:  # a negative key: a forward of rows with the same token
        batches[-same] = _siblings(cache, int(tokens[0]), same)
    measured = [*rows, -same] if counted else [*rows]
    times: dict[int, list[float]] = {n: [] for n in measured}
    experts = dict.fromkeys(measured, 0)
    if isinstance(engine, WarmsUp):
        for n in measured:
            engine.forward(batches[n])
    began = perf_counter()
    while not times[1] or (perf_counter() - began < patience and _needs_round(rows, times)):
        for n in measured if len(times[1]) % 2 == 0 else measured[::-1]:
            seconds, experts[n] = timed_forward(engine, batches[n])
            times[n].append(seconds)
    disturbance = _disturbance(times) if len(times[1]) > 1 else _disturbance({1: [warm[-1], *times[1]]})
    least = {n: sorted(some)[0 if disturbance >= NOISY else len(some) // 4] for n, some in times.items()}
    facts = engine.describe()
    prices = _context_prices(engine, facts)
    # More rows never take less: where it looks so, it is noise.
    found = Calibration(rows, tuple(accumulate((least[n] for n in rows), max)), *prices)
    if disturbance >= NOISY or impossible(found):
        disturbance = max(disturbance, NOISY)
        # Noise only adds: a number of rows takes no longer than a larger one.
        quickest = tuple(accumulate((min(times[n]) for n in reversed(rows)), min))[::-1]
        found = possible(Calibration(rows, quickest, *prices))
    if counted and facts.get("experts") and (more := experts[same] - experts[-same]) > 0:
        price = min(max(0.0, least[same] - least[-same]) / more, found.seconds[0] / experts[1])
        found = replace(found, experts=tuple(accumulate((experts[n] for n in rows), max)), expert_seconds=price)
        found = replace(found, all_experts=facts["experts"])
    return found, disturbance


def _context_prices(engine: Engine, facts: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds that a position of context adds to a forward, and that it adds for each row.

    Forwards differ from each other by more than a thousand positions cost, so attention is timed by itself. Where the
    engine cannot do that, context costs nothing until steps are timed.
    """
    room = min(CONTEXT, max(CONTEXT_BYTES // max(facts.get("kv_bytes_per_token") or 0, 1), CONTEXT_STEP))
    positions = min(room, engine.max_context - SAME_ROWS) // CONTEXT_STEP * CONTEXT_STEP
    if positions <= 0 or not isinstance(engine, TimesPhases):
        return 0.0, 0.0
    try:
        cache = engine.new_cache(blank=positions)
    except MemoryError:  # a shorter generation may still fit
        return 0.0, 0.0
    timed = OutputRequest(timings=True)
    batches = {n: chain(cache, np.arange(n, dtype=np.int32) % engine.vocab_size, timed) for n in (1, SAME_ROWS)}
    times: dict[int, list[float]] = {n: [] for n in batches}
    began = perf_counter()
    while not times[1] or (perf_counter() - began < CONTEXT_SECONDS and len(times[1]) < ROUNDS):
        for n, batch in batches.items():
            phases = engine.forward(batch).timings or ()
            times[n].append(sum(phase.seconds for phase in phases if phase.name == "attention"))
    alone, together = (sorted(some)[len(some) // 4] / positions for some in times.values())
    a_row = min(max(0.0, together - alone) / (SAME_ROWS - 1), alone)
    return alone - a_row, a_row


def impossible(calibration: Calibration) -> str:
    """Return why no machine has such a curve; empty if one may. See ``IMPOSSIBLE``."""
    known = list(zip(calibration.rows, calibration.seconds, strict=True))
    for n, seconds in known:
        for m, fewer in known:
            if m < n and not fewer <= seconds <= IMPOSSIBLE * -(-n // m) * fewer:
                return f"{n} rows take {seconds / fewer:.2f} times as long as {m}"
    return ""


def possible(calibration: Calibration) -> Calibration:
    """Return the highest curve below the given one in which n rows take at most n / m times the time of m rows."""
    seconds: list[float] = []
    for i, n in enumerate(calibration.rows):
        bounds = [-(-n // m) * known for m, known in zip(calibration.rows, seconds, strict=False)]
        seconds.append(min([calibration.seconds[i], *bounds]))
    return replace(calibration, seconds=tuple(seconds))


def _needs_round(rows: Sequence[int], times: Mapping[int, Sequence[float]]) -> bool:
    """Return True if another round is to be run, as far as patience goes."""
    done = len(times[1])
    if done < ROUNDS:
        return True
    curve = Calibration(tuple(rows), tuple(accumulate((min(times[n]) for n in rows), max)))
    return done < MAX_ROUNDS and (_disturbance(times) >= NOISY or bool(impossible(curve)))


def _disturbance(times: Mapping[int, Sequence[float]]) -> float:
    """Return the slowest over the quickest time, in the median over the numbers of rows."""
    return median(max(some) / max(min(some), 1e-9) for some in times.values())


def _siblings(cache: Cache, token: int, rows: int) -> Batch:
    """Return a batch with the same token in every row, all at the same position."""
    return Batch([cache], [rows], np.full(rows, token, np.int32), np.full(rows, -1, np.int32))


def timed_forward(engine: Engine, batch: Batch) -> tuple[float, int]:
    """Return the seconds of a forward, and the experts that it read."""
    began = perf_counter()
    output = engine.forward(batch)
    return perf_counter() - began, output.experts


def to_json(calibration: Calibration) -> dict[str, Any]:
    """Return a calibration as plain values."""
    return asdict(calibration)


def from_json(found: Any) -> Calibration | None:
    """Return the calibration that ``to_json`` wrote; None for anything that cannot be one."""
    if not isinstance(found, dict):
        return None
    rows, seconds, experts = found.get("rows"), found.get("seconds"), found.get("experts", [])
    slopes = (found.get("key_seconds"), found.get("key_row_seconds"), found.get("expert_seconds", 0.0))
    of = found.get("all_experts", 0)
    if not (isinstance(rows, list) and isinstance(seconds, list) and isinstance(experts, list)):
        return None
    if not rows or len(rows) != len(seconds) or len(experts) not in (0, len(rows)):
        return None
    if not all(is_number(n, 3600.0) for n in (*seconds, *slopes)):
        return None
    if not all(type(n) is int and 0 <= n < 1 << 31 for n in (*rows, *experts, of)):
        return None
    if rows[0] != 1 or rows[-1] > 1024 or sorted(set(rows)) != rows or seconds[0] == 0 or sorted(seconds) != seconds:
        return None
    if sorted(experts) != experts or (experts and not 0 < experts[0] <= experts[-1] <= of):
        return None
    key, row, expert = map(float, slopes)
    made = Calibration(tuple(rows), tuple(map(float, seconds)), key, row, tuple(experts), expert, of)
    return None if impossible(made) else made


def is_number(value: object, most: float) -> bool:
    """Return True for a number from 0 to ``most``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value <= most
