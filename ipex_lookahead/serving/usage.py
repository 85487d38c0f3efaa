"""What an answer took, in the words of the APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipex_lookahead.conversation.answer import Finish
from ipex_lookahead.decoding.prefix_cache import PAGE
from ipex_lookahead.decoding.stats import GenerationStats

LARGEST = 2**53 - 1
"""The largest whole number that every reader of JSON keeps: JavaScript rounds what is above. A seed that is drawn is
not above; who gives a larger one has it already."""
PREDICTION = "prediction"
"""The source that a request's own ``prediction`` drafts under."""


def cached(stats: GenerationStats) -> int:
    """Prompt tokens that were found, in whole pages.

    To the token it would reveal how far a guessed prompt agrees with another user's of the same key and salt.
    """
    return whole_pages(stats.cached_tokens)


def whole_pages(tokens: int) -> int:
    """Return the number of tokens, rounded down to whole pages."""
    return tokens - tokens % PAGE


def usage(stats: Sequence[GenerationStats], sharing: int = 1, thought: int = 0) -> dict[str, Any]:
    """OpenAI's ``usage`` of the answers of one request; each ``sharing`` of them in a row have one prompt.

    ``thought`` is how many of their tokens were.
    """
    prompt = sum(one.prompt_tokens for one in stats[::sharing])
    new = sum(one.tokens for one in stats)
    for one in stats:
        one.fold()
    accepted = sum(one.accepted_by_source[PREDICTION] for one in stats)
    drafted = sum(one.drafted_by_source[PREDICTION] for one in stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {
            "cached_tokens": sum(cached(one) for one in stats[::sharing]),
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": thought,
            "audio_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def timings(finish: Finish) -> dict[str, Any]:
    """Return llama.cpp's ``timings`` of one answer, and the fields that only this server has."""
    stats = finish.stats
    stats.fold()
    read = stats.prompt_tokens - cached(stats)
    return {
        "cache_n": cached(stats),
        "prompt_n": read,
        "prompt_ms": _ms(stats.prefill_seconds),
        "prompt_per_second": round(read / stats.prefill_seconds, 3) if stats.prefill_seconds > 0 else 0.0,
        "predicted_n": stats.tokens,
        "thinking_n": finish.thought,
        "predicted_ms": _ms(stats.decode_seconds),
        "predicted_per_second": round(stats.decode_tok_s, 3),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "draft_by_source": {
            source: {"drafted": count, "accepted": stats.accepted_by_source[source]}
            for source, count in sorted(stats.drafted_by_source.items())
        },
        "first_token_ms": _ms(stats.first_token_seconds),
        "tokens_per_step": round(stats.mean_acceptance_length, 3),
        "seed": stats.seed if stats.seed is None or stats.seed <= LARGEST else None,
        "repeats_itself": finish.repeats,
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
