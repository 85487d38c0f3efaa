"""What is said after an answer: its statistics, for people and as JSON, and how it ended where people should know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.engines.machine import peak_memory

TAIL = 64
"""Tokens at the end of an answer that are looked at."""
WARM = 0.7
"""A temperature that leads out of most loops; where it has not, a penalty is the next thing to try."""
LIMITS = ("length", "context")


def stats_line(stats: GenerationStats, *, loop: bool = False) -> str:
    """One line: tokens, speed, tokens a step, share drafted, prompt speed, peak memory, temperature and seed.

    Of an answer that is a ``loop`` the line tells no speed of decoding: nothing is drafted as easily.
    """
    parts = [f"{stats.tokens} {'token' if stats.tokens == 1 else 'tokens'}"]
    if stats.tokens > 1 and not loop:  # the first comes with the prompt: of one alone there is no speed to tell
        parts += [
            f"{stats.decode_tok_s:.1f} tok/s",
            f"{stats.mean_acceptance_length:.2f} tokens/step",
            f"{100 * drafted_share(stats):.0f}% drafted",
        ]
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    parts.append(f"prompt {stats.prompt_tokens}{cached} at {stats.prefill_tok_s:.0f} tok/s")
    if (peak := peak_memory()) is not None:
        parts.append(f"peak {peak / 1e9:.2f} GB")
    if stats.seed is not None:
        parts.append(f"temperature {stats.temperature:g}, seed {stats.seed}")
    return " · ".join(parts)


def stats_json(stats: GenerationStats) -> dict[str, Any]:
    """The same facts by name; speeds in tokens a second, memory in bytes."""
    steps, parts = max(stats.steps, 1), ("proposer", "engine", "sampler")
    speeds = ("prompt_tokens", "cached_tokens", "tokens", "decode_tok_s", "prefill_tok_s")
    acceptance = ("mean_acceptance_length", "acceptance_rate")
    return {
        **{name: getattr(stats, name) for name in speeds},
        "ttft_ms": 1000 * stats.first_token_seconds,
        **{name: getattr(stats, name) for name in acceptance},
        "temperature": stats.temperature or 0.0,
        "seed": stats.seed,
        "drafted_share": drafted_share(stats),
        "drafted_by_source": dict(stats.drafted_by_source),
        "accepted_by_source": dict(stats.accepted_by_source),
        "drafted_by_position": stats.drafted_by_position,
        "accepted_by_position": stats.accepted_by_position,
        **{f"{part}_ms_per_step": 1000 * getattr(stats, f"{part}_seconds") / steps for part in parts},
        "peak_memory_bytes": peak_memory(),
    }


def print_details(stats: GenerationStats) -> None:
    """Two small tables on standard error: drafts by source and position, and where the time of a step went."""
    sources = [(name, drafted, stats.accepted_by_source[name]) for name, drafted in stats.drafted_by_source.items()]
    positions = zip(stats.drafted_by_position, stats.accepted_by_position, strict=True)
    depths = [(f"position {depth}", *counts) for depth, counts in enumerate(positions, 1)]
    drafts = [
        (name, drafted, accepted, f"{100 * accepted / drafted:.0f}%" if drafted else "-")
        for name, drafted, accepted in (*sources, *depths)
    ]
    steps, total = max(stats.steps, 1), stats.decode_seconds
    parts = {name: getattr(stats, f"{name}_seconds") for name in ("engine", "proposer", "sampler")}
    parts["everything else"] = max(total - sum(parts.values()), 0.0)
    times = [
        (name, f"{1000 * seconds / steps:.3f}", f"{100 * seconds / total:.1f}%" if total else "-")
        for name, seconds in parts.items()
    ]
    if stats.drafted:
        print_table(("drafts", "drafted", "accepted", "share"), drafts, to_stderr=True)
    print_table(("of a step", "ms", "share"), times, to_stderr=True)


def drafted_share(stats: GenerationStats) -> float:
    """The part of the emitted tokens that came from drafts, 0 to 1."""
    return stats.accepted / stats.tokens if stats.tokens else 0.0


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


def ending(stats: GenerationStats, ids: Sequence[int], *, limit: str, setting: Callable[[str], str]) -> list[str]:
    """Lines for people about an answer that ended at a limit; none for one that ended by itself.

    Args:
        stats: of the answer, which is one sequence.
        ids: its tokens.
        limit: what sets the most tokens of an answer, as people type it.
        setting: what people type before the value of the setting of a name.
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
        lines.append(f"the answer repeats itself: try {setting(name)}{value:g} or a larger model")
    return lines
