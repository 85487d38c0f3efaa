"""What forwards of different numbers of rows take on the machine at hand, measured.

Drafting pays or does not by these ratios alone, so they are not assumed. What is learned of them later is the cost
curve's (:mod:`ipex_lookahead.controller.cost`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.engines.api import Batch, Cache, Engine, OutputRequest, TimesPhases
from ipex_lookahead.engines.prefill import chain

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 20, 24, 32)
"""Numbers of rows that are measured: every one that may be a tile's edge, as far as drafts go."""
COARSER = ((0.2, (1, 4, 16)), (0.01, (1, 2, 4, 5, 8, 16, 32)))
"""(seconds of a forward of one row, fewer numbers of rows for engines slower than that): a wait must be bounded."""
ROUNDS, MORE_ROUNDS = 5, 10
PATIENCE_SECONDS = 1.0
"""So many rounds, or where they are disturbed so many more; none is begun after so long, since the forwards of slow
engines last long enough to tell at once."""
WARM_UP, WARM_UP_SECONDS = 12, 0.04
"""Forwards of one row before the first round, as far as they fit in so long (two always): weights that fit in a cache
come into it little by little. (84 MB on a Xeon whose cache others share: 4.9 ms, then 4.1, 3.4, 3.0, 2.7, 2.6, 2.2, and
so it stays. A forward of one row after one of 32 takes 3.1 ms for the same reason.)"""
IMPOSSIBLE = 2.0
"""n rows can be computed as n / m forwards of m rows, so no machine takes longer for them than for those; nor does it
take less for more rows. A curve off by more than this factor is no machine's. (Below it are disturbances, of which
``NOISY`` allows 1.35 up in one number of rows and down in another; and libraries with a quick way for one
row alone: a float product of two rows may pack the weights first, and so read them twice and write them once.)"""

NOISY = 1.35
"""What was measured in rounds that differed by this factor and more is noisy: other processes had the machine too.
(SmolLM2-135M, five rounds: 1.05 to 1.27 on an idle machine, 1.42 to 1.78 beside a job at lower priority.)"""

CONTEXT, CONTEXT_STEP, CONTEXT_BYTES = 1024, 256, 64 << 20
"""Positions at which attention is timed: a multiple of the step, and at least one, no more than these bytes hold."""
CONTEXT_ROWS, CONTEXT_ROUNDS, CONTEXT_SECONDS = (1, 8), 5, 0.3
"""With so many rows, in so many rounds, of which none is begun after so long."""
PER_KEY = 0.45
PER_KEY_AND_ROW = 0.22
"""What a position of context costs where an engine cannot time its attention, in units of reading its keys and values
as fast as weights are read (a Zen 5, SmolLM2-135M in AVX-512, 64 to 1,088 positions, 1 to 32 rows; a Zen 3, which has
AVX2, takes 0.55 and 0.75)."""

SAME_ROWS = 8
"""Rows of one token at one position, which need no more experts than one row: what these take less than as many rows
of different tokens is the price of the experts."""


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
"""Where nothing was measured: the shape of a CPU with int8 dot products, in units of one row's time."""


def calibrate(engine: Engine, *, patience: float = PATIENCE_SECONDS) -> tuple[Calibration, float]:
    """Measure forwards of different numbers of rows on a scratch cache, in rounds; each counts by its lower quartile.

    Where other processes disturb the rounds each counts by its least, since they only add to a forward's time.

    Rounds go up and down in turn, so that every forward comes after one of nearly as many rows, as it does in a text: a
    large one leaves the caches to its own. A round costs about 30 forwards of one row, half or a fifth of that on slow
    engines.

    Returns:
        The calibration, and by what factor the slowest round was off the quickest, over the numbers of rows in median;
        where there was time for one round only, by what factor its forward of one row was off the one before it.

    """
    cache = engine.new_cache()
    most = min(ROWS[-1], engine.max_context)
    # All over the vocabulary: the first tokens of many are single bytes and marks, which may go to few experts.
    tokens = (np.arange(most) * max(1, engine.vocab_size // most) % engine.vocab_size).astype(np.int32)
    batches = {n: chain(cache, tokens[:n]) for n in range(1, most + 1)}
    # The first one also wakes the threads; the second one tells how fast the engine is.
    began = perf_counter()
    _, counted = timed_forward(engine, batches[1])
    warm = [timed_forward(engine, batches[1])[0]]
    while 1 + len(warm) < WARM_UP and perf_counter() - began < WARM_UP_SECONDS:
        warm.append(timed_forward(engine, batches[1])[0])
    grid = next((coarser for slow, coarser in COARSER if min(warm) > slow), ROWS)
    rows = tuple(n for n in grid if n <= most)
    same = max(n for n in rows if n <= SAME_ROWS)
    if counted:  # numbers of their own for the rows of one token, beside those of the grid
        batches[-same] = _siblings(cache, int(tokens[0]), same)
    measured = [*rows, -same] if counted else [*rows]
    times: dict[int, list[float]] = {n: [] for n in measured}
    experts = dict.fromkeys(measured, 0)
    began = perf_counter()
    while not times[1] or (perf_counter() - began < patience and _goes_on(times)):
        for n in measured if len(times[1]) % 2 == 0 else measured[::-1]:
            seconds, experts[n] = timed_forward(engine, batches[n])
            times[n].append(seconds)
    repeated = list(times.values()) if len(times[1]) > 1 else [[warm[-1], *times[1]]]
    disturbance = _disturbance(repeated)
    noisy = disturbance >= NOISY
    least = {n: sorted(some)[0 if noisy else len(some) // 4] for n, some in times.items()}
    # More rows never cost less, nor read fewer experts: where it looks so, it is noise.
    curve = _without_bumps([least[n] for n in rows]) if noisy else tuple(accumulate((least[n] for n in rows), max))
    facts = engine.describe()
    found = Calibration(rows, curve, *_context_prices(engine, facts, curve[0]))
    if counted and facts.get("experts") and (more := experts[same] - experts[-same]) > 0:
        price = min(max(0.0, least[same] - least[-same]) / more, curve[0] / experts[1])
        found = replace(found, experts=tuple(accumulate((experts[n] for n in rows), max)), expert_seconds=price)
        found = replace(found, all_experts=facts["experts"])
    return found, disturbance


def _context_prices(engine: Engine, facts: Mapping[str, Any], one_row: float) -> tuple[float, float]:
    """Seconds that a position of context adds to a forward, and that it adds for each row.

    A forward's time differs from another's by more than a thousand positions cost, so attention is timed by itself.
    """
    a_position = facts.get("kv_bytes_per_token") or 0
    weights = facts.get("step_bytes") or facts.get("weight_bytes") or 0
    reading = one_row * a_position / weights if weights else 0.0
    assumed = PER_KEY * reading, PER_KEY_AND_ROW * reading
    few, many = CONTEXT_ROWS
    room = min(CONTEXT, max(CONTEXT_BYTES // max(a_position, 1), CONTEXT_STEP), engine.max_context - many)
    positions = room // CONTEXT_STEP * CONTEXT_STEP
    if positions <= 0 or not isinstance(engine, TimesPhases):
        return assumed
    try:
        cache = engine.new_cache(blank=positions)
    except MemoryError:  # what is asked for may be short, and fit
        return assumed
    timed = OutputRequest(timings=True)
    batches = {n: chain(cache, np.arange(n, dtype=np.int32) % engine.vocab_size, timed) for n in CONTEXT_ROWS}
    times: dict[int, list[float]] = {n: [] for n in CONTEXT_ROWS}
    began = perf_counter()
    while not times[few] or (perf_counter() - began < CONTEXT_SECONDS and len(times[few]) < CONTEXT_ROUNDS):
        for n in CONTEXT_ROWS:
            phases = engine.forward(batches[n]).timings or ()
            times[n].append(sum(phase.seconds for phase in phases if phase.name == "attention"))
    alone, together = (sorted(times[n])[len(times[n]) // 4] / positions for n in CONTEXT_ROWS)
    a_row = min(max(0.0, together - alone) / (many - few), alone / few)
    return alone - few * a_row, a_row


def impossible(calibration: Calibration) -> str:
    """Why no machine could have that curve; empty where one could. See ``IMPOSSIBLE``."""
    known = list(zip(calibration.rows, calibration.seconds, strict=True))
    for n, seconds in known:
        for m, fewer in known:
            if m < n and not fewer <= seconds <= IMPOSSIBLE * -(-n // m) * fewer:
                return f"{n} rows take {seconds / fewer:.2f} times as long as {m}"
    return ""


def possible(calibration: Calibration) -> Calibration:
    """The dearest curve under the given one that a machine could have: n rows cost at most n / m times m rows."""
    seconds: list[float] = []
    for i, n in enumerate(calibration.rows):
        bounds = [-(-n // m) * known for m, known in zip(calibration.rows, seconds, strict=False)]
        seconds.append(min([calibration.seconds[i], *bounds]))
    return replace(calibration, seconds=tuple(seconds))


def _goes_on(times: Mapping[int, Sequence[float]]) -> bool:
    """Whether another round is to be run, as far as patience goes."""
    done = len(times[1])
    return done < ROUNDS or (done < MORE_ROUNDS and _disturbance(times.values()) >= NOISY)


def _disturbance(repeated: Iterable[Sequence[float]]) -> float:
    """By what factor the slowest of some times was off the quickest, over the numbers of rows in median."""
    return median(max(some) / max(min(some), 1e-9) for some in repeated)


def _without_bumps(seconds: Sequence[float]) -> tuple[float, ...]:
    """No number of rows takes longer than a larger one: where it looks so, its forwards were disturbed."""
    return tuple(accumulate(reversed(seconds), min))[::-1]


def quickest(one: Calibration, other: Calibration) -> Calibration:
    """Of two calibrations of one engine the shorter time of each number of rows: disturbances only add to them."""
    if one.rows != other.rows:
        return other
    return replace(other, seconds=_without_bumps([*map(min, one.seconds, other.seconds)]))


def _siblings(cache: Cache, token: int, rows: int) -> Batch:
    """The same token so many times at the same position."""
    return Batch([cache], [rows], np.full(rows, token, np.int32), np.full(rows, -1, np.int32))


def timed_forward(engine: Engine, batch: Batch) -> tuple[float, int]:
    """Seconds, and experts that were read."""
    began = perf_counter()
    output = engine.forward(batch)
    return perf_counter() - began, output.experts


def to_json(calibration: Calibration) -> dict[str, Any]:
    """A calibration as plain values."""
    return asdict(calibration)


def from_json(found: Any) -> Calibration | None:
    """The calibration that ``to_json`` spelled; None for anything that cannot be one."""
    if not isinstance(found, dict):
        return None
    rows, seconds = found.get("rows"), found.get("seconds")
    slopes: tuple[Any, Any] = (found.get("key_seconds"), found.get("key_row_seconds"))
    if not (isinstance(rows, list) and isinstance(seconds, list) and rows and len(rows) == len(seconds)):
        return None
    if not all(isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= 1024 for n in rows) or rows[0] != 1:
        return None
    if not all(map(_is_time, (*seconds, *slopes))) or seconds[0] == 0:
        return None
    if sorted(set(rows)) != rows or sorted(seconds) != seconds:
        return None
    experts, price, of = found.get("experts", []), found.get("expert_seconds", 0.0), found.get("all_experts", 0)
    if not (isinstance(experts, list) and len(experts) in (0, len(rows)) and _is_time(price)):
        return None
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 31 for n in (*experts, of)):
        return None
    if sorted(experts) != experts or (experts and not 0 < experts[0] <= experts[-1] <= of):
        return None
    calibration = Calibration(
        tuple(rows), tuple(map(float, seconds)), float(slopes[0]), float(slopes[1]), tuple(experts), float(price), of
    )
    return None if impossible(calibration) else calibration


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value < 3600.0
