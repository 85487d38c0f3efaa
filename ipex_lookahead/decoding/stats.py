"""Counters and times of one generation. They belong to the generation, not to the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ipex_lookahead.drafting.draft import Draft

FOLD_EVERY = 512
"""Drafted steps that are kept as they are before they are counted: counting is left out of the decoding loop."""
SCRATCH = -1
"""In place of the depth of rows that are evaluated and never accepted."""

Places = Counter[tuple[str, int]]
"""Draft tokens by (source, depth)."""


@dataclass(slots=True)
class GenerationStats:
    """Statistics of one generation. Times are in seconds.

    Attributes:
        prompt_tokens: prompt tokens of all sequences.
        cached_tokens: prompt tokens with keys and values that an earlier generation had cached.
        tokens: emitted tokens of all sequences.
        steps: target forwards after prefill.
        sequence_steps: number of steps of each sequence, summed over all sequences.
        drafted, accepted: numbers of verified and of accepted draft tokens.
        prefill_seconds: from the start to the end of the prompt pass.
        first_token_seconds: from the start to the first emitted token (TTFT).
        decode_seconds: from the first emitted token to the last.
        decode_cpu_seconds: CPU time of all threads of the process during decode_seconds, including other work and
            worker threads that spin while they wait.
        proposer_seconds, engine_seconds, sampler_seconds: parts of decode_seconds; the rest is the decoding loop's.
        finish_reasons: for each sequence "stop" (an end token, stop string or criterion), "length" (the token limit),
            "context" (the context is full), "cancelled" or "abandoned" (an exception ended the generation).
        seed: sampling seed, given or random; None for greedy decoding.
        temperature: sampling temperature; None for greedy decoding.
        per_step: for each step (drafted, accepted, proposer seconds, engine seconds).
        strategy: source name of drafts that do not name their sources.
        drafted_at, accepted_at: numbers of draft tokens by (source, depth). Depth 0 follows the last committed token.
            Scratch rows are never accepted and have the depth ``SCRATCH``.
        drafted_by_source, accepted_by_source: the same, summed by source.
        drafted_by_position, accepted_by_position: the same, summed by depth, without scratch rows.
        accepted_sources: the source of each accepted draft token, in order.
        drafts: each verified draft in order, with the indices of its accepted tokens; None if ``generate`` was called
            without ``keep_drafts``.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    sequence_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_cpu_seconds: float = 0.0
    proposer_seconds: float = 0.0
    engine_seconds: float = 0.0
    sampler_seconds: float = 0.0
    sequences: int = 1
    finish_reasons: list[str] = field(default_factory=list)
    seed: int | None = None
    temperature: float | None = None
    per_step: list[tuple[int, int, float, float]] = field(default_factory=list)
    strategy: str = ""
    drafted_at: Places = field(default_factory=Counter)
    accepted_at: Places = field(default_factory=Counter)
    accepted_sources: list[str] = field(default_factory=list)
    drafts: list[tuple[Draft, Sequence[int]]] | None = None
    _uncounted: list[tuple[Draft, Sequence[int]]] = field(default_factory=list, repr=False)

    def __repr__(self) -> str:
        """Return one line: lengths, speed, drafts, the end and the sampling."""
        facts = [f"tokens={self.tokens}", f"prompt_tokens={self.prompt_tokens}"]
        facts += [f"cached_tokens={self.cached_tokens}"] if self.cached_tokens else []
        facts += [f"decode_tok_s={self.decode_tok_s:.1f}", f"first_token_seconds={self.first_token_seconds:.3f}"]
        if self.drafted:
            facts += [f"drafted={self.drafted}", f"accepted={self.accepted}"]
            facts += [f"mean_acceptance_length={self.mean_acceptance_length:.2f}"]
        facts += [f"finish_reasons={self.finish_reasons}"]
        facts += [] if self.seed is None else [f"temperature={self.temperature:g}", f"seed={self.seed}"]
        return f"GenerationStats({', '.join(facts)})"

    def verified(self, draft: Draft, accepted: Sequence[int]) -> None:
        """Note a draft and the indices of its accepted tokens; they are counted later, by ``fold``."""
        self._uncounted.append((draft, accepted))
        if len(self._uncounted) >= FOLD_EVERY:
            self.fold()

    def fold(self) -> None:
        """Count what was noted by source and depth."""
        for draft, accepted in self._uncounted:
            depths: list[int] = []
            for parent in draft.parents:
                depths.append(0 if parent < 0 else depths[parent] + 1)
            end = len(draft) - draft.scratch
            depths[end:] = [SCRATCH] * draft.scratch
            rows = list(zip(draft.sources or [self.strategy] * len(draft), depths, strict=True))
            found = [rows[row] for row in accepted]
            self.drafted_at.update(rows)
            self.accepted_at.update(found)
            self.accepted_sources += [source for source, _ in found]
        if self.drafts is not None:
            self.drafts += self._uncounted
        self._uncounted.clear()

    def origins(self) -> list[str | None]:
        """For each token of a generation of one sequence the source that had drafted it; None = the target's own."""
        sources = iter(self.accepted_sources)
        found: list[str | None] = [None]
        for _, accepted, _, _ in self.per_step:
            found += [next(sources) for _ in range(accepted)]
            found.append(None)
        return found[: self.tokens]

    @property
    def drafted_by_source(self) -> Counter[str]:
        """Draft tokens by the name of what put them forward, scratch rows included."""
        return by_source(self.drafted_at)

    @property
    def accepted_by_source(self) -> Counter[str]:
        """Those of them that were accepted."""
        return by_source(self.accepted_at)

    @property
    def drafted_by_position(self) -> list[int]:
        """Draft tokens by depth, scratch rows left out: of any source."""
        return by_position(self.drafted_at, self.accepted_at)[0]

    @property
    def accepted_by_position(self) -> list[int]:
        """Accepted draft tokens by depth, of equal length."""
        return by_position(self.drafted_at, self.accepted_at)[1]

    @property
    def decode_tokens(self) -> int:
        """Tokens after the first of each sequence: those that ``decode_seconds`` was spent on."""
        return max(0, self.tokens - self.sequences)

    @property
    def decode_tok_s(self) -> float:
        """Tokens a second after the first token."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def prefill_tok_s(self) -> float:
        """Prompt tokens read a second."""
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_seconds if self.prefill_seconds > 0 else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted a target forward of a sequence, bonus included (vLLM's definition)."""
        return self.decode_tokens / self.sequence_steps if self.sequence_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def python_seconds(self) -> float:
        """Everything in decode that is not the engine: proposer, sampler and the loop itself."""
        return max(0.0, self.decode_seconds - self.engine_seconds)


def by_source(counts: Places) -> Counter[str]:
    """Draft tokens of all depths, by source."""
    found: Counter[str] = Counter()
    for (source, _), count in counts.items():
        found[source] += count
    return found


def by_position(drafted: Places, accepted: Places, source: str | None = None) -> tuple[list[int], list[int]]:
    """Drafted and accepted tokens by depth, of one source or of all; scratch rows have none."""
    rows = [
        (depth, count, accepted[name, depth])
        for (name, depth), count in drafted.items()
        if depth != SCRATCH and source in (None, name)
    ]
    found = [[0] * (1 + max((depth for depth, _, _ in rows), default=-1)) for _ in range(2)]
    for depth, *counts in rows:
        for total, count in zip(found, counts, strict=True):
            total[depth] += count
    return found[0], found[1]
