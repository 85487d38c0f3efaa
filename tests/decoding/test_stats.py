"""What a generation reports of itself."""

from __future__ import annotations

from ipex_lookahead.decoding.stats import GenerationStats


def test_statistics_are_shown_in_one_line() -> None:
    stats = GenerationStats(prompt_tokens=8, tokens=5, decode_seconds=0.5, finish_reasons=["stop"])
    assert repr(stats) == (
        "GenerationStats(tokens=5, prompt_tokens=8, decode_tok_s=8.0, first_token_seconds=0.000,"
        " finish_reasons=['stop'])"
    )
    stats.cached_tokens, stats.drafted, stats.accepted, stats.sequence_steps = 3, 4, 2, 2
    stats.seed, stats.temperature, stats.per_step = 7, 0.8, [(2, 1, 0.0, 0.0)] * 500
    assert repr(stats) == (
        "GenerationStats(tokens=5, prompt_tokens=8, cached_tokens=3, decode_tok_s=8.0, first_token_seconds=0.000,"
        " drafted=4, accepted=2, mean_acceptance_length=2.00, finish_reasons=['stop'], temperature=0.8, seed=7)"
    )
