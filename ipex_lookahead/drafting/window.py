"""The window of Lookahead Decoding (Fu et al., ICML 2024, arXiv 2402.02057) and the pool of n-grams that it fills.

W columns guess future tokens and are improved by one parallel (Jacobi) iteration in every forward. Their rows are
scratch: they are not verified and only produce n-grams of the model's own predictions, a few steps old.
"""

from __future__ import annotations

from collections.abc import Sequence

_MULTIPLIER, _INCREMENT, _MODULUS = 1664525, 1013904223, 2**32  # Numerical Recipes' generator, for an even spread

NGram = tuple[int, tuple[int, ...]]
"""A token and the N - 1 tokens after it."""


class Window:
    """N - 1 levels of guesses. Level 0 is a guess of the next W - 1 tokens, a chain after the last committed token.

    Column i starts at the i-th token of that chain (column 0 at the last committed token) and has one token of each
    level from 1 to N - 2. Each token is the model's answer to the one above it, one step older. The model's answer to
    the end of
    a column is the next level: with the column's tokens it forms an n-gram, and every level moves up by one. A row's
    attention mask is its ancestors, which equals the paper's mask.

    Moving up a level also moves the window by one token. A step that commits more tokens moves it further: columns are
    removed at its front, and columns of tokens picked from the text are added at its end. Each of the first N - 2 steps
    fills one level.

    Args:
        columns: W.
        ngram: N, number of tokens of an n-gram.
        text: at least one token, to pick from; it may grow.
    """

    def __init__(self, columns: int, ngram: int, text: Sequence[int]) -> None:
        self.columns = columns
        self._ngram = ngram
        self._text = text
        self._random = len(text)
        self.levels = [[self._pick() for _ in range(columns - 1)]]

    @property
    def rows(self) -> int:
        """Number of rows in a step."""
        return sum(map(len, self.levels))

    def append_to(self, tokens: list[int], parents: list[int]) -> None:
        """Append its rows, level by level; a row's parent is the previous row of the chain, or the row above it."""
        above = [-1]
        for level, ids in enumerate(self.levels):
            first = len(tokens)
            tokens.extend(ids)
            if level == 0:
                parents.extend([-1, *range(first, first + len(ids) - 1)][: len(ids)])
                above += range(first, first + len(ids))
            else:
                parents.extend(above[: len(ids)])
                above = list(range(first, first + len(ids)))

    def observe(self, last: int, emitted: Sequence[int], answers: Sequence[int]) -> list[NGram]:
        """Process the answers to its rows and move to the end of the committed text.

        Args:
            last: the last token that was committed before the step.
            emitted: the tokens that the step committed, at least one.
            answers: the model's argmax at each row; empty if the window was not in the step.

        Returns:
            The n-grams of the step; none while the levels are being filled.

        """
        found: list[NGram] = []
        moved = len(emitted)
        levels = self.levels
        if len(answers) == self.rows:
            ends = list(answers[len(answers) - len(levels[-1]) :])
            if len(levels) == 1:
                ends = [emitted[0], *ends]  # the end of column 0 is the last committed token itself
            if len(levels) < self._ngram - 1:
                levels.append(ends)
            else:
                for column, key in enumerate([last, *levels[0]]):
                    found.append((key, (*(level[column] for level in levels[1:]), ends[column])))
                above = [*levels[1:], ends]
                self.levels = [above[0][1:], *above[1:]]
                moved -= 1
        for _ in range(moved):
            for ids in self.levels:
                ids.append(self._pick())
                del ids[0]
        return found

    def _pick(self) -> int:
        """Return a pseudo-random token of the text; the sequence is deterministic."""
        self._random = (self._random * _MULTIPLIER + _INCREMENT) % _MODULUS
        return self._text[(self._random >> 8) % len(self._text)]


class NGramPool:
    """For each token, the G n-grams that most recently started with it; the oldest is evicted.

    Example: with G = 2, after ``5 1 1``, ``5 2 2`` and ``5 3 3`` the n-grams of 5 are ``3 3`` and ``2 2``.
    """

    def __init__(self, guesses: int) -> None:
        self._guesses = guesses
        self._known: dict[int, list[tuple[int, ...]]] = {}

    def remember(self, first: int, rest: tuple[int, ...]) -> None:
        """Add an n-gram, or make it the newest of those that start with ``first``."""
        known = self._known.setdefault(first, [])
        if rest in known:
            known.remove(rest)
        elif len(known) == self._guesses:
            del known[0]
        known.append(rest)

    def following(self, token: int) -> list[tuple[int, ...]]:
        """Return the rests of the n-grams that start with ``token``, the newest first."""
        return self._known.get(token, [])[::-1]

    def items(self) -> list[NGram]:
        """Return all n-grams."""
        return [(first, rest) for first, known in self._known.items() for rest in known]
