"""The window of Lookahead Decoding (Fu et al., ICML 2024, arXiv 2402.02057) and the pool of n-grams that it fills.

W columns guess the text ahead of themselves and are improved by one parallel (Jacobi) step in every forward. Their rows
are scratch: verified by nobody, they only bring n-grams of the model's own making, a few steps old.
"""

from __future__ import annotations

from collections.abc import Sequence

_MULTIPLIER, _INCREMENT, _MODULUS = 1664525, 1013904223, 2**32  # Numerical Recipes' generator, for a fair spread

NGram = tuple[int, tuple[int, ...]]
"""A token, and the N - 1 that follow it."""


class Window:
    """N - 1 levels of guesses. Level 0 is a guess of the next W - 1 tokens, a chain after the last committed token.

    Column i hangs from the i-th token of that chain (column 0 from the last committed one) and holds one token of each
    level from 1 to N - 2, each the model's answer to the one above it, one step older. The model's answer to a column's
    end is the next level: with the token that the column hangs from it makes an n-gram, and every level moves up by
    one. A row sees its ancestors, which is all there is to the paper's attention mask.

    Moving up a level also moves the window by one token. A step that commits more moves it by as many: columns leave at
    its front, and columns of tokens picked from the text join at its end. The first N - 2 steps fill a level each.

    Args:
        columns: W.
        ngram: N, tokens of an n-gram.
        text: at least one token, to pick from; it may grow meanwhile.
    """

    def __init__(self, columns: int, ngram: int, text: Sequence[int]) -> None:
        self.columns = columns
        self._ngram = ngram
        self._text = text
        self._random = len(text)
        self.levels = [[self._pick() for _ in range(columns - 1)]]

    @property
    def rows(self) -> int:
        """Rows that it takes in a step."""
        return sum(map(len, self.levels))

    def append_to(self, tokens: list[int], parents: list[int]) -> None:
        """Its rows, level by level; a parent is the row before in the chain, or above in the column."""
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
        """Take the answers to its rows, and move to the end of what is committed now.

        Args:
            last: the last token that was committed before the step.
            emitted: the tokens that the step committed, at least one.
            answers: the model's argmax at each row, or nothing where the window took no part in the step.

        Returns:
            The n-grams of the step, none while the levels fill.

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
        """A token of the text, no two runs differing."""
        self._random = (self._random * _MULTIPLIER + _INCREMENT) % _MODULUS
        return self._text[(self._random >> 8) % len(self._text)]


class NGramPool:
    """For each token the G n-grams that were last seen to begin with it; the oldest gives way.

    Example: with G = 2, after ``5 1 1``, ``5 2 2`` and ``5 3 3`` the n-grams after 5 are ``3 3`` and ``2 2``.
    """

    def __init__(self, guesses: int) -> None:
        self._guesses = guesses
        self._known: dict[int, list[tuple[int, ...]]] = {}

    def remember(self, first: int, rest: tuple[int, ...]) -> None:
        """Add an n-gram, or make it the newest of those that begin with ``first``."""
        known = self._known.setdefault(first, [])
        if rest in known:
            known.remove(rest)
        elif len(known) == self._guesses:
            del known[0]
        known.append(rest)

    def following(self, token: int) -> list[tuple[int, ...]]:
        """What n-grams say may follow, the newest first."""
        return self._known.get(token, [])[::-1]

    def items(self) -> list[NGram]:
        """All n-grams."""
        return [(first, rest) for first, known in self._known.items() for rest in known]
