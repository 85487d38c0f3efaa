"""A chain drafted by a trained head, which reads the target's features of each position and continues with its own.

Sources: EAGLE (Li et al., arXiv 2401.15077; EAGLE-3: 2503.01840) and multi-token prediction (DeepSeek-V3, 2412.19437,
section 2.2). The head's description (:mod:`ipex_lookahead.architectures`) defines its features and inputs; features and
KV caches stay in the core, in the target's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.draft_model import DraftChoice, with_room
from ipex_lookahead.engines.api import ARGMAX, Cache, Hidden

Draws = Callable[[int], tuple[float, int, float, float, int, int, int]]
"""Position -> the target's sampling parameters and noise there (``Sampler.draw``)."""


class Head(Protocol):
    """A head on an engine; :class:`ipex_lookahead.engines.native.head.NativeHead` documents the methods."""

    def follow(self, cache: Any) -> None:
        """Let the target's cache collect features for the head."""
        ...

    def allow_tokens(self, cache: Any, tokens: npt.NDArray[np.int32]) -> None:
        """Allow drafts of these tokens."""
        ...

    def draft(
        self,
        cache: Any,
        last: int,
        max_tokens: int,
        *,
        copied: Sequence[int] = (),
        rates: Sequence[float] = (),
        min_chance: float = 0.0,
        ends: Collection[int] = (),
        draw: Any = None,
    ) -> tuple[list[int], list[float]]:
        """Return token ids and their probabilities."""
        ...

    def next_logits(self, cache: Any, token: int, *, first: bool) -> npt.NDArray[np.float32] | None:
        """Return the logits after a token, float32 [vocab_size], or None."""
        ...

    def end_draft(self, cache: Any) -> None:
        """Drop the drafted rows."""
        ...


class HeadChain:
    """Drafts with a head. Its state is in the target's cache: the caller calls ``Head.follow``.

    Args:
        head: the head of this target.
        cache: returns the target's cache of the sequence, which changes after a preemption.
        choose: chooses a token from the head's logits if processors change them; None: the core chooses.
        draws: the target's sampling; None: greedy.
        min_prob: 0 to 1; the chain ends after the token at which its probability falls below this value.
        end_tokens: ids that end a sequence.
    """

    wants = ARGMAX

    def __init__(
        self,
        head: Head,
        cache: Callable[[], Cache],
        choose: DraftChoice | None = None,
        draws: Draws | None = None,
        *,
        min_prob: float = 0.0,
        end_tokens: Collection[int] = (),
    ) -> None:
        self._head = head
        self._cache = cache
        self._choose = choose
        self._draws = draws
        self._min_prob = min_prob
        self._ends = frozenset(end_tokens)

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start a sequence with a followed cache; all tokens of the prompt may be drafted."""
        self._text = np.array(prompt, np.int64)  # may have spare room for draft tokens
        self._length = len(prompt)
        self._head.allow_tokens(self._cache(), np.array(prompt, np.int32))

    def propose(self, budget: int) -> Draft:
        """Return a chain of at most ``budget`` tokens with the head's probability of each."""
        return self.propose_after((), budget)

    def propose_after(self, copied: Sequence[int], budget: int, min_chance: float = 0.0) -> Draft:
        """Return a chain after ``copied`` draft tokens, which are not part of the returned draft.

        The chain ends after the token at which its probability falls below ``min_chance``.
        """
        min_chance, cache, began = max(min_chance, self._min_prob), self._cache(), perf_counter()
        if self._choose is not None:
            found, probs = self._chosen(cache, copied, budget, min_chance)
        else:
            draw = None if self._draws is None else self._draws(self._length + len(copied))
            found, probs = self._head.draft(
                cache,
                self._last(),
                budget,
                copied=copied,
                min_chance=min_chance,
                ends=self._ends,
                draw=draw,
            )
        return Draft(found, range(-1, len(found) - 1), probs=probs, seconds=perf_counter() - began)

    def observe(self, outcome: Outcome) -> None:
        """Append the emitted tokens to the text."""
        self._write(self._length, outcome.emitted)
        self._length += len(outcome.emitted)

    def _last(self) -> int:
        return int(self._text[self._length - 1])

    def _write(self, at: int, tokens: Sequence[int]) -> None:
        self._text = with_room(self._text, at + len(tokens))
        self._text[at : at + len(tokens)] = tokens

    def _chosen(
        self, cache: Cache, copied: Sequence[int], budget: int, min_chance: float
    ) -> tuple[list[int], list[float]]:
        assert self._choose is not None
        found: list[int] = []
        probs: list[float] = []
        chance = 1.0
        logits = self._head.next_logits(cache, self._last(), first=True)
        self._write(self._length, copied)
        end = self._length + len(copied)
        for token in copied:
            if logits is not None:
                logits = self._head.next_logits(cache, token, first=False)
        while logits is not None:
            chosen = self._choose(logits, self._text[:end])
            if chosen is None:
                break
            self._write(end, chosen[:1])
            end += 1
            found.append(chosen[0])
            probs.append(chosen[1])
            chance *= chosen[1]
            if len(found) >= budget or chance < min_chance or chosen[0] in self._ends:
                break
            logits = self._head.next_logits(cache, found[-1], first=False)
        self._head.end_draft(cache)
        return found, probs
