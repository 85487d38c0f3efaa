"""How an answer ended, where people should know: at a limit, and perhaps in a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipex_lookahead.decoding.stats import GenerationStats

TAIL = 64
"""Tokens at the end of an answer that are looked at."""
WARM = 0.7
"""A temperature that leads out of most loops; where it has not, a penalty is the next thing to try."""
LIMITS = ("length", "context")


def repeats(ids: Sequence[int]) -> bool:
    """Whether the last 64 tokens say again what stands before them, or one thing at least twice."""
    tail = list(ids[-TAIL:])
    if len(tail) < TAIL:
        return False
    if any(tail[period:] == tail[:-period] for period in range(1, TAIL // 2 + 1)):
        return True
    before = list(ids[:-1])
    return any(before[start : start + TAIL] == tail for start in range(len(before) - TAIL + 1))


def is_loop(stats: GenerationStats, ids: Sequence[int]) -> bool:
    """Whether an answer ran into a limit in a loop: its speed says nothing then."""
    return bool(stats.finish_reasons) and stats.finish_reasons[0] in LIMITS and repeats(ids)


def ending(
    stats: GenerationStats, ids: Sequence[int], *, limit: str, setting: Callable[[str, float], str]
) -> list[str]:
    """Lines for people about an answer that ended at a limit; none for one that ended by itself.

    Args:
        stats: of the answer, which is one sequence.
        ids: its tokens.
        limit: what sets the most tokens of an answer, as people type it.
        setting: how people type a setting, of its name and its value.
    """
    reason = stats.finish_reasons[0] if stats.finish_reasons else ""
    lines = []
    if reason == "length":
        lines.append(f"stopped at the token limit ({limit})")
    elif reason == "context":
        lines.append("stopped where the model's context ends")
    if is_loop(stats, ids):
        cold = (stats.temperature or 0.0) < WARM
        name, value = ("temperature", WARM) if cold else ("repetition_penalty", 1.1)
        lines.append(f"the answer repeats itself: try {setting(name, value)} or a larger model")
    return lines
