"""A model's own block for drafting (MTP): made of a token and the target's features of the position before it.

Reference: DeepSeek-V3, arXiv 2412.19437, section 2.2; drafted tokens go in again with the block's own features, as in
Qwen3-Next's and GLM-4.5's model cards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.draft_model import DraftChoice
from ipex_lookahead.engines.base import FINAL_NORM, Hidden, OutputRequest

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
_MOST_WAITING = 512
"""Steps whose rows wait for the head."""


class Head(Protocol):
    """A head on an engine; :class:`ipex_lookahead.engines.native.head.NativeHead` says more of each."""

    width: int
    max_context: int

    def new_cache(self) -> Any:
        """An empty sequence's keys and values."""
        ...

    def draft(
        self, cache: Any, tokens: Ids, features: Floats, most: int, least_prob: float, ends: Collection[int]
    ) -> tuple[list[int], list[float]]:
        """Commit rows, and draft greedily what follows them: token ids and their probabilities."""
        ...

    def step(self, cache: Any, tokens: Ids, features: Floats, *, own: bool = False) -> tuple[Floats, Floats]:
        """Commit rows; the last one's logits, float32 [vocab_size], and its own features, as ``own`` ones are given."""
        ...


class Mtp:
    """Drafts a chain with a head, whose keys and values follow the text.

    Say ``5 6 7`` is committed and the target has run 5 and 6. The head has read (6, features of 5) and reads
    (7, features of 6), which gives 8; then (8, its own features), which gives 9. If the target emits ``8 4``, the head
    goes back to 7, and next reads (8, features of 7) and (4, features of 8).

    What lies before the first features that are known, those of an earlier text, the head does not see.

    Args:
        head: for this target.
        choose: how a token is chosen from the head's logits; None takes the most likely.
        min_prob: 0 to 1; a less likely token ends the draft.
        end_tokens: ids that end a sequence.
    """

    wants = OutputRequest(hidden=(FINAL_NORM,))

    def __init__(
        self,
        head: Head,
        choose: DraftChoice | None = None,
        *,
        min_prob: float = 0.0,
        end_tokens: Collection[int] = (),
    ) -> None:
        self._head = head
        self._choose = choose
        self._min_prob = min_prob
        self._ends = frozenset(end_tokens)

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Read the prompt's rows, all but the last, whose features are known."""
        self._text = [*prompt]
        self._cache = self._head.new_cache()
        known = None if hidden is None else hidden.get(FINAL_NORM)
        features = np.empty((0, self._head.width), np.float32) if known is None else known[: len(prompt) - 1]
        tokens = np.array(prompt[len(prompt) - len(features) :], np.int32)
        self._tokens, self._features = [tokens], [np.ascontiguousarray(features)]
        if len(tokens) > 1 and len(tokens) <= self._head.max_context:
            self._head.draft(self._cache, tokens[:-1], self._features[0][:-1], 0, 0.0, ())
            self._tokens, self._features = [tokens[-1:]], [self._features[0][-1:]]

    def propose(self, budget: int) -> Draft:
        """A chain of at most ``budget`` tokens, with the head's own probabilities."""
        tokens, features = np.concatenate(self._tokens), np.concatenate(self._features)
        end = self._cache.length + len(tokens)
        budget = min(budget, self._head.max_context - end)
        if budget <= 0 or not len(tokens):
            return Draft()
        self._tokens, self._features = [tokens[:0]], [features[:0]]
        if self._choose is None:
            found, probs = self._head.draft(self._cache, tokens, features, budget, self._min_prob, self._ends)
        else:
            found, probs = self._chosen(tokens, features, budget)
            self._cache.crop(end)
        return Draft(found, range(-1, len(found) - 1), probs=probs)

    def observe(self, outcome: Outcome) -> None:
        """Take what was emitted, and the features that it follows, for the next rows."""
        self._text += outcome.emitted
        if outcome.hidden is None:
            return
        path = [0, *(row + 1 for row in outcome.accepted)][: len(outcome.emitted)]
        self._tokens.append(np.array(outcome.emitted[: len(path)], np.int32))
        self._features.append(outcome.hidden[FINAL_NORM][path])
        if len(self._tokens) > _MOST_WAITING:  # of a head that nobody asks: the latest are enough
            self._tokens, self._features = self._tokens[-_MOST_WAITING // 2 :], self._features[-_MOST_WAITING // 2 :]

    def _chosen(self, tokens: Ids, features: Floats, budget: int) -> tuple[list[int], list[float]]:
        assert self._choose is not None
        found: list[int] = []
        probs: list[float] = []
        while True:
            logits, features = self._head.step(self._cache, tokens, features, own=bool(found))
            chosen = self._choose(logits, np.array(self._text + found, np.int64))
            if chosen is None:
                return found, probs
            found.append(chosen[0])
            probs.append(chosen[1])
            if len(found) >= budget or chosen[1] < self._min_prob or chosen[0] in self._ends:
                return found, probs
            tokens = np.array(found[-1:], np.int32)
