"""Drafts and their outcomes as flat trees, independent of models and devices.

Both are immutable by convention. They are not frozen dataclasses, because those take three times as long to create, and
every step creates three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import Hidden


@dataclass(slots=True)
class Draft:
    """A tree of draft tokens in two flat lists, parents before children.

    Attributes:
        tokens: draft token ids.
        parents: for each draft token the index of its parent in ``tokens``; -1: the last committed token.
        scratch: number of trailing rows that are evaluated but never accepted (the Outcome has their argmax).
        probs: for each token an estimate, 0 to 1, that it is accepted if its parent is; empty without estimates. A
            proposer with estimates orders tokens best first, so that the controller can take a prefix.
        sources: for each token the name of its source, for statistics; empty if one name covers all.
        match: number of last committed tokens that matched earlier text; 0 if unknown.
        seconds: drafting time of the tokens, the price, for a head, a second model or a caller's proposer; else 0.

    Example: after ``... 7``, ``Draft(tokens=[3, 4, 9], parents=[-1, 0, -1])`` predicts 3 4 or 9.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    scratch: int = 0
    probs: Sequence[float] = ()
    sources: Sequence[str] = ()
    match: int = 0
    seconds: float = field(default=0.0, compare=False)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int], match: int = 0) -> Draft:
        """Return a single path."""
        return cls(tokens, range(-1, len(tokens) - 1), match=match)

    def first(self, count: int) -> Draft:
        """Return the first ``count`` tokens without scratch rows: a tree, because parents come before children."""
        if count >= len(self.tokens) and not self.scratch:
            return self
        return Draft(
            self.tokens[:count],
            self.parents[:count],
            0,
            self.probs[:count],
            self.sources[:count],
            self.match,
            self.seconds,
        )

    def without(self, token: int) -> Draft:
        """Return the draft without a token, the tokens that follow it, and scratch rows."""
        at: dict[int, int] = {-1: -1}
        for row in range(len(self.tokens) - self.scratch):
            if self.tokens[row] != token and self.parents[row] in at:
                at[row] = len(at) - 1
        rows = [row for row in at if row >= 0]
        return Draft(
            [self.tokens[row] for row in rows],
            [at[self.parents[row]] for row in rows],
            0,
            [self.probs[row] for row in rows] if self.probs else (),
            [self.sources[row] for row in rows] if self.sources else (),
            self.match,
            self.seconds,
        )

    def best_chain(self) -> Draft:
        """Return the path with the most expected accepted tokens, without scratch rows, for engines without trees.

        With ``probs`` the value of a path is the sum of its tokens' probabilities to be reached and accepted; without,
        it is the number of tokens. Ties go to the path that ends first.
        """
        count = len(self.tokens) - self.scratch
        if not self.scratch and list(self.parents) == list(range(-1, count - 1)):
            return self
        worth = [0.0] * count
        reached = [1.0] * count
        best = -1
        for at in range(count):
            parent = self.parents[at]
            reached[at] = (1.0 if parent < 0 else reached[parent]) * (self.probs[at] if self.probs else 1.0)
            worth[at] = (0.0 if parent < 0 else worth[parent]) + reached[at]
            if best < 0 or worth[at] > worth[best]:
                best = at
        path: list[int] = []
        while best >= 0:
            path.append(best)
            best = self.parents[best]
        path.reverse()
        return Draft(
            [self.tokens[at] for at in path],
            range(-1, len(path) - 1),
            0,
            [self.probs[at] for at in path] if self.probs else (),
            [self.sources[at] for at in path] if self.sources else (),
            self.match,
            self.seconds,
        )


@dataclass(slots=True)
class Outcome:
    """The result of verifying a draft.

    Attributes:
        draft: the draft that was verified.
        accepted: indices into ``draft.tokens`` of the accepted path, root first.
        emitted: the tokens committed by this step: the accepted ones, then the bonus token. Shorter if a stop condition
            ended the sequence inside the draft.
        scratch_argmax: argmax of the target at each scratch row.
        top: the target's most likely ids at every row, most likely first: ``top[0]`` after the last committed token,
            ``top[i + 1]`` after draft token i, including rejected ones. None unless the proposer ``wants`` it.
        logits: the target's logits at the same rows, float32 [rows, vocab_size], or None.
        hidden: the target's hidden states at the same rows, by layer, float32 [rows, hidden size], or None; row 0 is
            the last committed token's, row i + 1 that of draft token i.
    """

    draft: Draft
    accepted: Sequence[int]
    emitted: Sequence[int]
    scratch_argmax: Sequence[int] = field(default=())
    top: Sequence[Sequence[int]] | None = None
    logits: npt.NDArray[np.float32] | None = None
    hidden: Hidden | None = None
