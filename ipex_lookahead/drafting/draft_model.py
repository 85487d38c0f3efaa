"""Speculative decoding: a smaller model of the same vocabulary drafts a chain, which the target verifies in one pass.

The idea is speculative decoding (Leviathan, Kalman and Matias, ICML 2023; Chen et al., 2023) without rejection
sampling: the target's token at a position is a function of its logits and of the noise of that position. A draft model
that uses the same noise agrees wherever the two distributions nearly agree, with sampling too, and verification only
compares tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX, Cache, Engine, Hidden, OutputRequest, StepOutput
from ipex_lookahead.engines.prefill import prefill

DraftChoice = Callable[[npt.NDArray[np.float32], npt.NDArray[np.int64]], "tuple[int, float] | None"]
"""(logits float32 [vocab_size], tokens so far including draft tokens, int64 [n]) -> the next token and the probability,
0 to 1, that the target chooses the same; or None if there is no token to draft."""

_MATCH_DECAY, _MATCH_GOAL, _STEP, _KEEP = 0.5, 0.9, 0.01, 0.9
"""ipex-llm's ``auto_parameters``: how the threshold follows the acceptance rate."""


class Keys(Protocol):
    """Provides a draft model's caches and takes them back."""

    def take(self, tokens: npt.NDArray[np.int64]) -> Cache:
        """Return a cache for a text, int64 [n]; it may hold a proper prefix of it."""
        ...

    def room(self, positions: int) -> bool:
        """Return True if the cache may grow to this number of positions."""
        ...

    def keep(self, tokens: npt.NDArray[np.int64], cache: Cache, *, ended: bool) -> None:
        """Report the tokens in the cache, int64 [n]. ``ended``: the sequence has ended and returns the cache."""
        ...


class DraftModel:
    """Drafts a chain with a second engine, on a cache of that engine.

    Example: the prompt is ``[5, 6]`` and the draft model continues with 7, 8, 9. ``begin`` feeds it 5. ``propose(2)``
        feeds
    it 6, which gives 7, then 7, which gives 8: the chain ``7 8``. If the target emits ``7 4``, the row of 7 stays in
        the
    draft model's cache, and the next ``propose`` feeds 4. If it emits ``7 8 1``, 8 and 1 are fed in one forward.

    A token less likely than ``min_prob`` ends the draft and is its last token. The draft also ends with an end token,
    and at the end of the draft model's context: beyond it, drafts are empty.

    Args:
        engine: the draft model, with the target's vocabulary. It may be the target's own engine.
        choose: chooses a token from the draft model's logits; None takes the most likely one with its probability.
        min_prob: 0 to 1. With 0 and no ``choose``, no logits are computed, and ``probs`` stay empty.
        min_tokens: number of tokens drafted regardless of probability, within the budget (ipex-llm's
            ``min_step_draft``).
        adapt: let ``min_prob`` follow the acceptance rate, as ipex-llm's ``auto_th_stop_draft`` does: up by a
            thousandth per step while the recent acceptance rate is below 0.9, else down.
        end_tokens: ids that end a sequence.
        keys: provides the cache; None creates an empty one. Without room for it, drafts are empty.
    """

    wants = ARGMAX

    def __init__(
        self,
        engine: Engine,
        choose: DraftChoice | None = None,
        *,
        min_prob: float = 0.4,
        min_tokens: int = 1,
        adapt: bool = False,
        end_tokens: Collection[int] = (),
        keys: Keys | None = None,
    ) -> None:
        self._engine = engine
        self._choose = choose or most_likely
        self._wants_logits = choose is not None or min_prob > 0
        self._first_min_prob = min_prob
        self._min_tokens = min_tokens
        self._adapt = adapt
        self._end_tokens = frozenset(end_tokens)
        self._keys = keys
        self.begin(())

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Read the prompt except its last token; a prompt longer than the draft model's context is not read."""
        self._tokens = np.array(prompt, np.int64)
        self._length = len(prompt)
        self._drafted = 0
        self._match = 1.0
        self.min_prob = self._first_min_prob
        self._read_prompt()

    def propose(self, budget: int) -> Draft:
        """Return a chain of at most ``budget`` tokens, with the draft model's probabilities."""
        start = self._length
        # The row of the last token has position length - 1; the draft's last token is never fed.
        budget = min(budget, self._engine.max_context - start + 1)
        self._drafted = 0
        if budget <= 0 or not start or not self._room(start + budget - 1):
            return Draft()
        self._reserve(start + budget)
        probs: list[float] = []
        while self._drafted < budget:
            at = start + self._drafted
            chosen = self._next(at)
            if chosen is None:
                break
            token, prob = chosen
            self._tokens[at] = token
            self._drafted += 1
            probs.append(prob)
            if token in self._end_tokens or (prob < self.min_prob and self._drafted >= self._min_tokens):
                break
        if not probs:
            return Draft()
        tokens = self._tokens[start : start + self._drafted].tolist()
        return Draft(tokens, range(-1, len(tokens) - 1), probs=probs if self._wants_logits else ())

    def observe(self, outcome: Outcome) -> None:
        """Commit the emitted tokens; rows of correct draft tokens stay in the cache."""
        start, emitted = self._length, outcome.emitted
        drafted = self._tokens[start : start + self._drafted].tolist()
        self._reserve(start + len(emitted))
        self._tokens[start : start + len(emitted)] = emitted
        self._length += len(emitted)
        self._drafted = 0
        right = 0
        # The last emitted token is fed again by the next draft to get its logits, even if its row is in the cache.
        while right < min(len(drafted), len(emitted) - 1) and drafted[right] == emitted[right]:
            right += 1
        self._crop(start + right)
        if self._adapt and len(outcome.draft):
            self._follow(len(outcome.accepted) / len(outcome.draft))

    def end(self) -> None:
        """Return the cache to its provider: the sequence has ended, or is preempted."""
        if self._keys is not None:
            self._keys.keep(self._tokens[: self._cache.length], self._cache, ended=True)

    def _read_prompt(self) -> None:
        self._cache: Cache = self._engine.new_cache() if self._keys is None else self._keys.take(self._tokens)
        end = self._length - 1
        if self._cache.length < end < self._engine.max_context and self._room(end):
            self._feed(end)
            if self._keys is not None:
                self._keys.keep(self._tokens[:end], self._cache, ended=False)

    def _room(self, positions: int) -> bool:
        return self._keys is None or self._keys.room(positions)

    def _crop(self, length: int) -> None:
        if self._cache.length > length:
            self._cache.crop(length)

    def _next(self, end: int) -> tuple[int, float] | None:
        """Choose the token after the first ``end`` tokens; feeds those that the draft model has not read first."""
        output = self._feed(end, answer=True, held=self._drafted > 0)
        if output.logits is None:
            return int(output.argmax[0]), 1.0
        return self._choose(output.logits[0], self._tokens[:end])

    def _feed(self, end: int, *, answer: bool = False, held: bool = False) -> StepOutput:
        """Extend the cache to ``end`` tokens and return the output of the last row, if ``answer``.

        ``held``: crop() must be able to roll these tokens back.
        """
        unread = self._tokens[self._cache.length : end].astype(np.int32)
        wanted = None if answer else [()]
        *_, (_, output) = prefill(
            self._engine,
            [(self._cache, unread)],
            wanted=wanted,
            wants=OutputRequest(logits=answer and self._wants_logits),
            held=held,
        )
        return output

    def _reserve(self, length: int) -> None:
        self._tokens = with_room(self._tokens, length)

    def _follow(self, accepted: float) -> None:
        self._match = _MATCH_DECAY * self._match + (1 - _MATCH_DECAY) * accepted
        wanted = self.min_prob + (_STEP if self._match < _MATCH_GOAL else -_STEP)
        self.min_prob = min(1.0, max(0.0, _KEEP * self.min_prob + (1 - _KEEP) * wanted))


def with_room(tokens: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Return the array if it has ``length`` elements, else a copy with at least that and twice its own size."""
    if length <= len(tokens):
        return tokens
    grown = np.empty(max(length, 2 * len(tokens)), np.int64)
    grown[: len(tokens)] = tokens
    return grown


def most_likely(logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int64]) -> tuple[int, float]:
    """Return the argmax (the lowest id of a tie) and its probability."""
    token = int(logits.argmax())
    return token, probability(logits, token)


def probability(logits: npt.NDArray[np.float32], token: int) -> float:
    """Return the softmax of ``logits`` (finite or -inf), float32 [n], at ``token``."""
    highest = logits.max()
    return float(np.exp(logits[token] - highest) / np.exp(logits - highest).sum())
