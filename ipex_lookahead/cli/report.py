"""The line of statistics after a generation, and its JSON form."""

from __future__ import annotations

import resource
import sys
from typing import Any

from ipex_lookahead.decoding.stats import GenerationStats


def stats_line(stats: GenerationStats) -> str:
    """One line: tokens, speed, tokens a step, share drafted, prompt speed, peak memory."""
    parts = [
        f"{stats.tokens} tokens",
        f"{stats.decode_tok_s:.1f} tok/s",
        f"{stats.mean_acceptance_length:.2f} tokens/step",
        f"{100 * drafted_share(stats):.0f}% drafted",
        f"prompt {stats.prompt_tokens} at {stats.prefill_tok_s:.0f} tok/s",
        f"peak {peak_memory() / 1e9:.2f} GB",
    ]
    return " · ".join(parts)


def stats_json(stats: GenerationStats) -> dict[str, Any]:
    """The same facts by name; speeds in tokens a second, memory in bytes."""
    return {
        "prompt_tokens": stats.prompt_tokens,
        "tokens": stats.tokens,
        "decode_tok_s": stats.decode_tok_s,
        "prefill_tok_s": stats.prefill_tok_s,
        "ttft_ms": 1000 * stats.first_token_seconds,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "drafted_share": drafted_share(stats),
        "peak_memory_bytes": peak_memory(),
    }


def drafted_share(stats: GenerationStats) -> float:
    """The part of the emitted tokens that came from drafts, 0 to 1."""
    return stats.accepted / stats.tokens if stats.tokens else 0.0


def peak_memory() -> int:
    """The most memory this process has had resident, bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
