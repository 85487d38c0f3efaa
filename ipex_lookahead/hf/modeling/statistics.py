"""ipex-llm's names for the statistics of the last generation."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.runtime.runtime import Runtime


class IpexLlmStatistics:
    """Statistics of the last generation, and ipex-llm's names for them."""

    runtime: Runtime

    @property
    def stats(self) -> GenerationStats:
        """Statistics of the last generation that the calling thread has begun on this model; empty before the first.

        ``generate(return_dict_in_generate=True).stats`` has those of any generation.
        """
        return self.runtime.stats

    @property
    def first_token_time(self) -> Any:
        """Seconds to the first token."""
        return self.stats.first_token_seconds

    @property
    def n_token_generated(self) -> int:
        """Tokens emitted."""
        return self.stats.tokens

    @property
    def n_drafted(self) -> int:
        """Draft tokens verified."""
        return self.stats.drafted

    @property
    def n_matched(self) -> int:
        """Draft tokens accepted."""
        return self.stats.accepted

    @property
    def draft_num(self) -> list[int]:
        """For each step the tokens drafted."""
        return [step[0] for step in self.stats.per_step]

    @property
    def accept_num(self) -> list[int]:
        """For each step the draft tokens accepted."""
        return [step[1] for step in self.stats.per_step]

    @property
    def accept_rate(self) -> list[Any]:
        """For each step the share of the draft that was accepted; 0 where nothing was drafted."""
        return [step[1] / step[0] if step[0] else 0.0 for step in self.stats.per_step]

    @property
    def draft_time(self) -> list[Any]:
        """For each step the seconds that drafting took."""
        return [step[2] for step in self.stats.per_step]

    @property
    def verify_time(self) -> list[Any]:
        """For each step the seconds that the target's forward took."""
        return [step[3] for step in self.stats.per_step]

    @property
    def generate_time(self) -> list[Any]:
        """For each step the seconds of drafting and forward together."""
        return [step[2] + step[3] for step in self.stats.per_step]

    @property
    def e2e_time_without_first(self) -> Any:
        """Seconds from the first token to the last."""
        return self.stats.decode_seconds
