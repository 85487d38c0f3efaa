"""Speculative decoding: a smaller model of the same vocabulary drafts a chain, which the target verifies in one pass.

The idea is speculative decoding (Leviathan, Kalman and Matias, ICML 2023; Chen et al., 2023), without its rejection
sampling: the target's choice at a position is a function of its logits and of the noise of that position, so a draft
model that chooses with the same noise agrees wherever the two models nearly agree, sampled or not, and verification
only compares tokens.

Self-speculation is the same with a four-bit copy of the target as draft model (ipex-llm's ``speculative=True``). Where
decoding runs at memory bandwidth, the copy of a sym_int8 model drafts in about half its time, that of a bf16 or fp16
model in about a quarter, and it mostly chooses the same token. Unlike ipex-llm's, the copy has no KV cache of its own:
it attends to the target's (as in QuantSpec, Tiwari et al., ICML 2025), which saves the memory and a second reading of
the prompt, and is right more often.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX, Cache, Engine, Hidden, OutputRequest, StepOutput
from ipex_lookahead.engines.images import ImageRows
from ipex_lookahead.engines.prefill import prefill

DraftChoice = Callable[[npt.NDArray[np.float32], npt.NDArray[np.int64]], "tuple[int, float] | None"]
"""(logits float32 [vocab_size], tokens so far including draft tokens, int64 [n]) -> the next token and the probability,
0 to 1, that the target chooses the same; or None if there is no token to draft."""

_MATCH_DECAY, _MATCH_GOAL, _STEP, _KEEP = 0.5, 0.9, 0.01, 0.9
"""ipex-llm's ``auto_parameters``: how the threshold follows the acceptance rate."""


class Prefixes(Protocol):
    """The part of :class:`~ipex_lookahead.decoding.prefix_cache.PrefixCache` that a draft model needs."""

    def take(self, tokens: npt.NDArray[Any], key: str = "") -> tuple[Cache, list[int]] | None:
        """Return a KV cache with a prefix of the tokens, int64 [n], and its pages; None for a miss."""
        ...

    def extend(self, pages: list[int], positions: int) -> bool:
        """Reserve pages for ``positions`` positions; return False where there is no room."""
        ...

    def keep(
        self, tokens: npt.NDArray[Any], cache: Cache, pages: Sequence[int], key: str = "", *, goes_on: bool = False
    ) -> None:
        """Store a fork of a KV cache that holds these tokens, int64 [n]."""
        ...

    def release(self, pages: Sequence[int]) -> None:
        """Return the pages of a sequence that has ended."""
        ...


class DraftModel:
    """Drafts a chain with a second engine, on a cache of that engine.

    Example: the prompt is ``[5, 6]`` and the draft model continues with 7, 8, 9. ``begin`` feeds it 5. ``propose(2)``
        feeds
    it 6, which gives 7, then 7, which gives 8: the chain ``7 8``. If the target emits ``7 4``, the row of 7 stays in
        the
    draft model's cache, and the next ``propose`` feeds 4. If it emits ``7 8 1``, 8 and 1 are fed in one forward.

    With ``shared`` the rows of drafted tokens go into the free room behind the committed positions of the target's
    cache, and the cache is cropped before the target runs, which overwrites them. So the committed rows stay what the
    target computed, bit for bit. Say 5 and 6 are committed and the cache holds 5. ``propose(2)`` feeds the copy 6,
    which gives 7, then 7, which gives 8; the cache holds 5 again. The target then runs 6, 7 and 8.

    A token less likely than ``min_prob`` ends the draft; it is put forward still, since it is there already. The draft
    also ends with an end token, and where the draft model's context ends: beyond it, drafts are empty.

    Args:
        engine: the draft model, of the target's vocabulary. The target's own engine may serve too.
        choose: how a token is chosen from the draft model's logits; None takes the most likely one, with the draft
            model's probability.
        min_prob: 0 to 1. With 0 and no ``choose`` the engine returns no logits, and ``probs`` stay empty.
        min_tokens: drafted whatever their probability, as far as the budget goes (ipex-llm's ``min_step_draft``).
        adapt: let ``min_prob`` follow the acceptance, as ipex-llm's ``auto_th_stop_draft`` does: up by a thousandth
            after a step while fewer than nine tenths of the drafted tokens are accepted lately, else down.
        end_tokens: ids that end a sequence.
        prefixes: prefix cache of the draft model's own KV caches; None: a KV cache for this sequence alone. Without
            room in the prefix cache, drafts are empty.
        key: tenant of the prefix cache.
        shared: the target's KV cache of the sequence, for a low-bit copy of the target with KV caches of the same kind;
            then there is no prefix cache.
        images: the images before the drafted tokens, for such a copy: they move its RoPE positions.
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
        prefixes: Prefixes | None = None,
        key: str = "",
        shared: Cache | None = None,
        images: ImageRows | None = None,
    ) -> None:
        self._engine = engine
        self._choose = choose or most_likely
        self._wants_logits = choose is not None or min_prob > 0
        self._first_min_prob = min_prob
        self._min_tokens = min_tokens
        self._adapt = adapt
        self._end_tokens = frozenset(end_tokens)
        self._prefixes, self._key = prefixes, key
        self._pages: list[int] = []
        self._shares = shared is not None
        self._images = images
        if shared is not None:
            self._cache = shared
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
        """Return a chain of at most ``budget`` tokens, with the draft model's own probabilities."""
        start = self._length
        # The row of the last token has position length - 1; the draft's last token is never fed.
        budget = min(budget, self._engine.max_context - start + 1)
        self._drafted = 0
        if not self._shares:
            return self._chain(start, budget)
        length = self._cache.length
        try:
            return self._chain(start, budget)
        finally:
            self._cache.crop(length)

    def _chain(self, start: int, budget: int) -> Draft:
        if budget <= 0 or not start or not self._room(start + budget - 1):
            return Draft()
        began = perf_counter()
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
        known = probs if self._wants_logits else ()
        return Draft(tokens, range(-1, len(tokens) - 1), probs=known, seconds=perf_counter() - began)

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
        """Store the KV cache in the prefix cache: the sequence has ended or was preempted."""
        self._keep(self._cache.length, goes_on=False)
        self._release()

    def _read_prompt(self) -> None:
        if self._shares:  # the target has read it
            return
        self._release()
        found = None if self._prefixes is None else self._prefixes.take(self._tokens, self._key)
        self._cache, self._pages = (self._engine.new_cache(), []) if found is None else found
        end = self._length - 1
        if self._cache.length < end < self._engine.max_context and self._room(end):
            self._feed(end)
            self._keep(end, goes_on=True)

    def _room(self, positions: int) -> bool:
        return self._prefixes is None or self._prefixes.extend(self._pages, positions)

    def _keep(self, length: int, *, goes_on: bool) -> None:
        if self._prefixes is not None and self._pages:
            self._prefixes.keep(self._tokens[:length], self._cache, self._pages, self._key, goes_on=goes_on)

    def _release(self) -> None:
        if self._prefixes is not None:
            self._prefixes.release(self._pages)
            self._pages = []

    def _crop(self, length: int) -> None:
        if not self._shares and self._cache.length > length:
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
            held=held or self._shares,  # a copy takes nothing into the target's recurrent states
            images=() if self._images is None else [self._images],
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
