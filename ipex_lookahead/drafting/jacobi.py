"""Jacobi: Lookahead Decoding (Fu et al., ICML 2024, arXiv 2402.02057), the lookahead of this package's name.

A window of W columns guesses future tokens and is improved by one parallel (Jacobi) iteration in every forward. The
n-grams along its columns go into a pool, and those that start with the last committed token are verified in the same
forward. It needs no draft model and no earlier text.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.window import NGramPool, Window
from ipex_lookahead.engines.api import ARGMAX, Hidden


class Jacobi:
    """The window (lookahead branch) and the pool's n-grams (verification branch) in one flat tree.

    Example, W = 3, N = 3, G = 2: after ``... 7`` with the pool ``7: (8 9), (8 4)`` and the levels ``[20 21]``,
    ``[30 31 32]`` the draft is ``8 9 4 | 20 21 30 31 32``. The parent of 4 and 9 is 8 (equal prefixes share their
    rows), the parents of 30, 31 and 32 are the committed 7, 20 and 21, and the last five rows are scratch. Answers 40
    41 42 at 30 31 32 put ``7: (30 40)``, ``20: (31 41)``, ``21: (32 42)`` into the pool, and the levels become ``[31
    32]``, ``[40 41 42]``.

    The pool starts with the n-grams of the prompt. N-grams with an end token need no special case: the sequence ends
    when one is accepted.

    A full step has (N - 1)(W + G) - 1 rows. With a smaller budget, W and G shrink in proportion; if the budget shrinks
    later (near the end of a sequence), the window is suspended and only n-grams are verified.

    Args:
        window: W, number of columns.
        ngram: N, number of tokens of an n-gram.
        guesses: G, number of n-grams stored per token (the oldest is evicted) and verified per step.
    """

    wants = ARGMAX

    def __init__(self, window: int = 15, ngram: int = 5, guesses: int = 15) -> None:
        self._window, self._ngram, self._guesses = window, ngram, guesses
        self.begin(())

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Reset, then add the prompt's n-grams to the pool."""
        self._text = list(prompt)
        self._pool = NGramPool(self._guesses)
        self._lookahead: Window | None = None
        tail = self._ngram - 1
        for at in range(len(self._text) - tail):
            self._pool.remember(self._text[at], tuple(self._text[at + 1 : at + 1 + tail]))

    def propose(self, budget: int) -> Draft:
        """Return n-grams of the pool, the most recent first, then the window as scratch rows."""
        if budget <= 0 or not self._text:
            return Draft()
        columns, guesses = self._shares(budget)
        if columns and (self._lookahead is None or columns > self._lookahead.columns):
            self._lookahead = Window(columns, self._ngram, self._text)
        scratch = 0 if self._lookahead is None else self._lookahead.rows
        if scratch > budget:
            scratch = 0
        tokens, parents = self._verification(min(guesses * (self._ngram - 1), budget - scratch))
        if self._lookahead is not None and scratch:
            self._lookahead.append_to(tokens, parents)
        return Draft(tokens, parents, scratch)

    def observe(self, outcome: Outcome) -> None:
        """Update the window with the answers to its rows and move it to the end of the committed text."""
        if self._lookahead is not None and outcome.emitted:
            for first, rest in self._lookahead.observe(self._text[-1], outcome.emitted, outcome.scratch_argmax):
                self._pool.remember(first, rest)
        self._text.extend(outcome.emitted)

    def _shares(self, budget: int) -> tuple[int, int]:
        """Return the number of columns and n-grams for a budget: W and G, or proportional shares of it."""
        fits = (budget + 1) // (self._ngram - 1)
        wanted = self._window + self._guesses
        if fits >= wanted:
            return self._window, self._guesses
        if fits < 2:
            return 0, self._guesses
        columns = max(1, fits * self._window // wanted)
        return columns, max(1, min(self._guesses, fits - columns))

    def _verification(self, room: int) -> tuple[list[int], list[int]]:
        """Return the n-grams after the last committed token as a tree: equal prefixes share their rows."""
        tokens: list[int] = []
        parents: list[int] = []
        rows: dict[tuple[int, int], int] = {}
        for rest in self._pool.following(self._text[-1]):
            at = -1
            for token in rest:
                row = rows.get((at, token))
                if row is None:
                    if len(tokens) == room:
                        return tokens, parents
                    row = rows[at, token] = len(tokens)
                    tokens.append(token)
                    parents.append(at)
                at = row
        return tokens, parents
