"""What a proposer puts forward, and what came of it: flat trees, no model and no device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of draft tokens in two flat lists, parents before children.

    Attributes:
        tokens: draft token ids.
        parents: for each draft token the index of its parent in ``tokens``; -1 = the last committed token.
        scratch: how many trailing rows are evaluated but never accepted (their argmax goes back in the Outcome).

    Example: after ``... 7``, ``Draft(tokens=[3, 4, 9], parents=[-1, 0, -1])`` says that 7 may be followed by 3 4 or by 9.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    scratch: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Draft:
        """One path: every token hangs from the one before."""
        return cls(tokens, range(-1, len(tokens) - 1))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What verification made of a draft.

    Attributes:
        draft: the draft that was verified.
        accepted: indices into ``draft.tokens`` of the accepted path, root first.
        emitted: the tokens committed by this step: the accepted ones, then the bonus token. Shorter where a stop
            condition ended the sequence inside the draft.
        scratch_argmax: argmax of the target at each scratch row.
    """

    draft: Draft
    accepted: Sequence[int]
    emitted: Sequence[int]
    scratch_argmax: Sequence[int] = field(default=())
