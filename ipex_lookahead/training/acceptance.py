"""What a head brings: its chains beside what its target said, without running either again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Chains of a head along texts, each begun where the last one's accepted tokens and the target's own end.

    Attributes:
        drafted: how often a chain had a token at that depth, one number a depth.
        accepted: how often that token and those before it were what the target said.
    """

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Of the tokens drafted, how many were accepted, 0 to 1."""
        return sum(self.accepted) / max(1, sum(self.drafted))

    @property
    def by_depth(self) -> tuple[float, ...]:
        """Of the chains, how many were accepted to that depth, 0 to 1."""
        return tuple(yes / max(1, of) for yes, of in zip(self.accepted, self.drafted, strict=True))

    @property
    def tokens_a_step(self) -> float:
        """Of the target: its own, and those accepted."""
        return 1 + sum(self.by_depth)


def walked(texts: Iterable[tuple[torch.Tensor, torch.Tensor, int]], depth: int) -> Acceptance:
    """Walk along texts as decoding does.

    Args:
        texts: of each the tokens, int64 [n]; what was drafted, int64 [n - 1, depth], as ``eagle3.chains`` gives it;
            and how many tokens the prompt has.
        depth: tokens of a chain.
    """
    drafted, accepted = [0] * depth, [0] * depth
    for tokens, drafts, prompt in texts:
        row = prompt - 1
        while row + 1 + depth < len(tokens):
            said = tokens[row + 2 : row + 2 + depth]
            right = (drafts[row, : len(said)] == said).long().cumprod(0)
            taken = int(right.sum())
            for at in range(depth):
                drafted[at] += 1
                accepted[at] += at < taken
            row += 1 + taken
    return Acceptance(tuple(drafted), tuple(accepted))
