"""Logits on their way to a token: processors, then the choice, and what is kept of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.sampling import Sampler, greedy

Ids = npt.NDArray[np.int64]
"""Token ids, int64 [n]."""
Logits = npt.NDArray[np.float32]
"""float32 [vocab_size]."""
Processor = Callable[[Ids, Logits], Logits]
"""(the sequence so far, the prompt without padding included; logits of what follows) -> logits. The first are views and
must not be changed; the second may be."""


class Choose:
    """Raw logits -> the next token of one sequence, called once for each emitted position, in order.

    Args:
        prefix: the sequence so far.
        processors: applied in order, before the choice.
        sampler: None takes the argmax.
        warpers: what ``sampler`` stands for, for ``scores``.
        scores, raw: lists that get the processed and warped, and the raw logits of every position, or None.
    """

    def __init__(
        self,
        prefix: Callable[[], Ids],
        processors: Sequence[Processor],
        sampler: Sampler | None,
        warpers: Sequence[Processor] = (),
        *,
        scores: list[Logits] | None = None,
        raw: list[Logits] | None = None,
    ) -> None:
        self._prefix = prefix
        self._processors = processors
        self._sampler = sampler
        self._warpers = warpers
        self._scores = scores
        self._raw = raw

    def __call__(self, logits: Logits) -> int:
        """Process, choose, and record what was asked for."""
        self.record(logits)
        prefix = self._prefix()
        for processor in self._processors:
            logits = processor(prefix, logits)
        return self.pick(logits)

    def record(self, logits: Logits) -> None:
        """Keep the raw logits where they were asked for."""
        if self._raw is not None:
            self._raw.append(logits.copy())

    def pick(self, logits: Logits) -> int:
        """The token, of logits that have been through the processors."""
        prefix = self._prefix()
        token = greedy(logits) if self._sampler is None else self._sampler(np.ascontiguousarray(logits), len(prefix))
        if self._scores is not None:
            logits = logits.copy()
            for warper in self._warpers:
                logits = warper(prefix, logits)
            self._scores.append(logits)
        return token
