"""A trained head drafts a chain: it reads the target's features of each position, and goes on with its own.

Sources: EAGLE (Li et al., arXiv 2401.15077; EAGLE-3: 2503.01840) and multi-token prediction (DeepSeek-V3, 2412.19437,
section 2.2). Which features, and what a row is made of, its description says (:mod:`ipex_lookahead.architectures`);
features, keys and values stay in the core, in the target's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.draft_model import DraftChoice, with_room
from ipex_lookahead.drafting.heads.record import Record
from ipex_lookahead.engines.api import ARGMAX, Cache, Hidden

Draws = Callable[[int], tuple[float, int, float, float, int, int, int]]
"""From a position to how the target draws there (``Sampler.draw``)."""


class Head(Protocol):
    """A head on an engine; :class:`ipex_lookahead.engines.native.head.NativeHead` says more of each."""

    def follow(self, cache: Any) -> None:
        """Have the target's cache keep what the head needs, from now on."""
        ...

    def allow_tokens(self, cache: Any, tokens: npt.NDArray[np.int32]) -> None:
        """Tokens that may be drafted too."""
        ...

    def draft(
        self,
        cache: Any,
        last: int,
        most: int,
        *,
        copied: Sequence[int] = (),
        rates: Sequence[float] = (),
        least: float = 0.0,
        ends: Collection[int] = (),
        draw: Any = None,
    ) -> tuple[list[int], list[float]]:
        """Token ids and their probabilities."""
        ...

    def next_logits(self, cache: Any, token: int, *, first: bool) -> npt.NDArray[np.float32] | None:
        """What follows a token, float32 [vocab_size], or None."""
        ...

    def end_draft(self, cache: Any) -> None:
        """Forget what was drafted."""
        ...


class HeadChain:
    """Drafts with a head, whose state is in the target's cache: see ``Head.follow``, which is the caller's to call.

    Args:
        head: for this target.
        record: how often it was right so far, which its probabilities are calibrated by; it goes on here.
        cache: gives the target's cache of the sequence, which is another one after it was preempted.
        choose: how a token is chosen from the head's logits, where processors change them; None leaves it to the core.
        draws: how the target draws; None takes the most likely.
        min_prob: 0 to 1; the chain ends with the token with which all of it is less likely right.
        end_tokens: ids that end a sequence.
    """

    wants = ARGMAX

    def __init__(
        self,
        head: Head,
        record: Record,
        cache: Callable[[], Cache],
        choose: DraftChoice | None = None,
        draws: Draws | None = None,
        *,
        min_prob: float = 0.0,
        end_tokens: Collection[int] = (),
    ) -> None:
        self._head = head
        self.record = record
        self._cache = cache
        self._choose = choose
        self._draws = draws
        self._min_prob = min_prob
        self._ends = frozenset(end_tokens)

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start a sequence, whose cache the head follows; the prompt's tokens may all be drafted."""
        self._text = np.array(prompt, np.int64)  # may have room behind the text, for drafted tokens
        self._length = len(prompt)
        self._chain: tuple[Sequence[int], Sequence[int], Sequence[float]] = ((), (), ())
        self._head.allow_tokens(self._cache(), np.array(prompt, np.int32))

    def propose(self, budget: int) -> Draft:
        """A chain of at most ``budget`` tokens, with the chances that each is right where those before it are."""
        return self.behind((), budget)

    def behind(self, copied: Sequence[int], budget: int, least: float = 0.0) -> Draft:
        """The same behind tokens that are taken to follow the text; these are not in the draft.

        The chain also ends with the token with which all of it is less likely right than ``least``.
        """
        least, cache = max(least, self._min_prob), self._cache()
        if self._choose is not None:
            found, probs = self._chosen(cache, copied, budget, least)
        else:
            draw = None if self._draws is None else self._draws(self._length + len(copied))
            found, probs = self._head.draft(
                cache,
                self._last(),
                budget,
                copied=copied,
                rates=self.record.rates,
                least=least,
                ends=self._ends,
                draw=draw,
            )
        self._chain = (copied, found, probs)
        return Draft(found, range(-1, len(found) - 1), probs=[self.record.rate(prob) for prob in probs])

    def observe(self, outcome: Outcome) -> None:
        """Count what of the last chain was right, verified or not: what was emitted tells."""
        emitted = outcome.emitted
        copied, drafted, probs = self._chain
        self._chain = ((), (), ())
        if [*copied] == [*emitted[: len(copied)]]:
            self.record.observe(drafted, probs, emitted[len(copied) :])
        self._write(self._length, emitted)
        self._length += len(emitted)

    def _last(self) -> int:
        return int(self._text[self._length - 1])

    def _write(self, at: int, tokens: Sequence[int]) -> None:
        self._text = with_room(self._text, at + len(tokens))
        self._text[at : at + len(tokens)] = tokens

    def _chosen(self, cache: Cache, copied: Sequence[int], budget: int, least: float) -> tuple[list[int], list[float]]:
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
            chance *= self.record.rate(chosen[1])
            if len(found) >= budget or chance < least or chosen[0] in self._ends:
                break
            logits = self._head.next_logits(cache, found[-1], first=False)
        self._head.end_draft(cache)
        return found, probs
