"""Statistics of an answer, as text and as JSON, and remarks on its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.engines.machine import peak_memory
from ipex_lookahead.runtime.repetition import ends_in_loop, repeats

WARM = 0.7
"""The temperature to suggest for a loop; above it, a repetition penalty is suggested."""
LIMITS = ("length", "context")


def stats_line(stats: GenerationStats, *, loop: bool = False, verbose: bool = False) -> str:
    """Return one line: tokens, speed, drafted share, prompt, temperature and seed.

    For a ``loop`` the line has no decoding speed, because repetitions are easy to draft. With ``verbose`` it also has
    the tokens per step, the speed of the prompt and the memory.
    """
    parts = [f"{stats.tokens} {'token' if stats.tokens == 1 else 'tokens'}"]
    if stats.tokens > 1 and not loop:  # the first token belongs to the prompt
        parts += [f"{stats.decode_tok_s:.1f} tok/s", f"{100 * drafted_share(stats):.0f}% drafted"]
        if verbose:
            parts.append(f"{stats.mean_acceptance_length:.2f} tokens/step")
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    speed = f" at {stats.prefill_tok_s:.0f} tok/s" if verbose else ""
    parts.append(f"prompt {stats.prompt_tokens}{cached}{speed}")
    if verbose and (peak := peak_memory()) is not None:
        parts.append(f"peak {peak / 1e9:.2f} GB")
    if stats.seed is not None:
        parts.append(f"temperature {stats.temperature:g}, seed {stats.seed}")
    return " · ".join(parts)


def stats_json(stats: GenerationStats) -> dict[str, Any]:
    """Return the same facts for JSON; speeds in tokens per second, memory in bytes."""
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
    """Print two tables on standard error: drafts by source and position, and the time of a step by part."""
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
    """Return the share of the tokens that were accepted drafts, 0 to 1."""
    return stats.accepted / stats.tokens if stats.tokens else 0.0


def is_loop(stats: GenerationStats, ids: Sequence[int]) -> bool:
    """Return True if an answer reached a limit in a loop, or was ended for it; its speed is not meaningful then."""
    reason = stats.finish_reasons[0] if stats.finish_reasons else ""
    return repeats(ids) if reason in LIMITS else reason == "stop" and ends_in_loop(ids)


def ending(stats: GenerationStats, ids: Sequence[int], *, limit: str, setting: Callable[[str], str]) -> list[str]:
    """Return remarks on an answer that ended at a limit or in a loop.

    Args:
        stats: Statistics of the answer.
        ids: Its tokens.
        limit: The option that limits the length, as typed.
        setting: Setting -> the option, as typed before its value.
    """
    reason = stats.finish_reasons[0] if stats.finish_reasons else ""
    lines = []
    if reason == "length":
        lines.append(f"stopped at the token limit ({limit})")
    elif reason == "context":
        lines.append("stopped at the end of the model's context")
    if is_loop(stats, ids):
        cold = (stats.temperature or 0.0) < WARM
        name, value = ("temperature", WARM) if cold else ("repetition_penalty", 1.1)
        lines.append(f"the answer repeats itself: try {setting(name)}{value:g} or a larger model")
        if reason == "stop":
            lines.append("stopped at the repetition (chat --no-stop-loops turns this off)")
    return lines
