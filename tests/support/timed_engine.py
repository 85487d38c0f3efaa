"""Engines whose forwards take as long on a clock as a test says."""

from __future__ import annotations

from typing import Any

from tests.support.scripted_engine import ScriptedEngine, markov

USED, EXPERTS = 2 * 4, 32 * 4
"""Of 4 layers: each row goes to 2 of 32 in every one."""


def timed_engine(clock: list[float], seconds: Any, max_context: int = 4096) -> ScriptedEngine:
    """``seconds(rows)`` pass in each forward."""
    engine = markov(vocab_size=12, max_context=max_context)
    forward = engine.forward

    def slow(batch: Any) -> Any:
        clock[0] += seconds(len(batch.tokens))
        return forward(batch)

    engine.forward = slow  # type: ignore[method-assign]
    return engine


def steps_of_four(rows: int) -> float:
    return 0.001 * (1 + (rows - 1) // 4)


def free(rows: int) -> int:
    """What rows read that know nothing of each other."""
    return round(EXPERTS * (1 - (1 - USED / EXPERTS) ** rows))


def took(experts: int) -> float:
    """Reading an expert takes a millisecond, all else 10."""
    return 0.01 + 0.001 * experts


def mixture(clock: list[float], touched: Any = free) -> ScriptedEngine:
    """``touched(n)`` experts are read for n different rows."""
    engine = markov(vocab_size=64)
    forward, describe = engine.forward, engine.describe

    def counted(batch: Any) -> Any:
        experts = touched(len({(token, parent) for token, parent in zip(batch.tokens, batch.parents, strict=True)}))
        clock[0] += took(experts)
        output = forward(batch)
        output.experts = experts
        return output

    engine.forward = counted  # type: ignore[method-assign]
    engine.describe = lambda: {**describe(), "experts": EXPERTS}  # type: ignore[method-assign]
    return engine
