"""Jacobi: Lookahead Decoding (Fu et al., ICML 2024, arXiv 2402.02057), the lookahead of this package's name.

A window of W columns guesses the text ahead of itself and is improved by one parallel (Jacobi) step in every forward;
the n-grams that fall out along its columns go into a pool, and those that start with the last committed token are
verified in the same forward. No draft model, no earlier text: the model's own guesses, a few steps old.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.drafting.draft import Draft, Outcome

_MULTIPLIER, _INCREMENT, _MODULUS = 1664525, 1013904223, 2**32  # Numerical Recipes' generator, for a fair spread


class Jacobi:
    """The window (lookahead branch) and the pool's n-grams (verification branch) in one flat tree.

    The window holds N - 1 levels. Level 0 is a guess of the next W - 1 tokens, a chain after the last committed token.
    Column i hangs from the i-th token of that chain (column 0 from the last committed one) and holds one token of each
    level from 1 to N - 2, each the model's answer to the one above it, one step older. The model's answer to a column's
    end is the next level: with the token that the column hangs from it makes an n-gram for the pool, and every level
    moves up by one. A row sees its ancestors, which is all there is to the paper's attention mask.

    Example, W = 3, N = 3, G = 2: after ``... 7`` with the pool ``7: (8 9), (8 4)`` and the levels ``[20 21]``,
    ``[30 31 32]`` the draft is ``8 9 4 | 20 21 30 31 32``, where 4 and 9 both hang from 8 (equal beginnings share their
    rows), 30 from the committed 7, 31 from 20, 32 from 21, and the last five are scratch. Answers 40 41 42 at 30 31 32
    put ``7: (30 40)``, ``20: (31 41)``, ``21: (32 42)`` into the pool, and the levels become ``[31 32]``,
    ``[40 41 42]``.

    Moving up a level also moves the window by one token. A step that commits more moves it by as many: columns leave at
    its front, and columns of tokens picked from the text join at its end. The first N - 2 steps fill a level each. The
    pool starts with the n-grams of the prompt. N-grams with an end token in them need no care: a sequence ends where
    one is accepted.

    A full step has (N - 1)(W + G) - 1 rows. Where the budget is smaller, W and G shrink in proportion; where it shrinks
    later on (near the end of a sequence), the window rests and n-grams alone are verified.

    Args:
        window: W, columns.
        ngram: N, tokens of an n-gram.
        guesses: G, n-grams kept for a token (the oldest gives way) and verified at a time.
    """

    top = 0

    def __init__(self, window: int = 15, ngram: int = 5, guesses: int = 15) -> None:
        self._window, self._ngram, self._guesses = window, ngram, guesses
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget everything, then put the prompt's n-grams into the pool."""
        self._text = list(prompt)
        self._pool: dict[int, list[tuple[int, ...]]] = {}
        self._levels: list[list[int]] = []
        self._columns = 0
        self._random = len(self._text)
        tail = self._ngram - 1
        for at in range(len(self._text) - tail):
            self._remember(self._text[at], tuple(self._text[at + 1 : at + 1 + tail]))

    def propose(self, budget: int) -> Draft:
        """N-grams of the pool, the most recent first, then the window as scratch rows."""
        if budget <= 0 or not self._text:
            return Draft()
        columns, guesses = self._shares(budget)
        if columns > self._columns:
            self._start_window(columns)
        window = sum(map(len, self._levels))
        if window > budget:
            window = 0
        tokens, parents = self._verification(min(guesses * (self._ngram - 1), budget - window))
        if window:
            self._lookahead(tokens, parents)
        return Draft(tokens, parents, window)

    def observe(self, outcome: Outcome) -> None:
        """Take the answers to the window's rows, and move it to the end of what is committed now."""
        last = self._text[-1] if self._text else -1
        self._text.extend(outcome.emitted)
        answers = outcome.scratch_argmax
        if not outcome.emitted or not self._columns:
            return
        moved = len(outcome.emitted)
        if len(answers) == sum(map(len, self._levels)) and self._improve(last, outcome.emitted[0], answers):
            moved -= 1
        self._shift(moved)

    def _shares(self, budget: int) -> tuple[int, int]:
        """Columns and n-grams for a budget: W and G, or as much of both as fits."""
        fits = (budget + 1) // (self._ngram - 1)
        wanted = self._window + self._guesses
        if fits >= wanted:
            return self._window, self._guesses
        if fits < 2:
            return 0, self._guesses
        columns = max(1, fits * self._window // wanted)
        return columns, max(1, min(self._guesses, fits - columns))

    # ---- verification branch ---------------------------------------------------------------------------------------

    def _remember(self, first: int, rest: tuple[int, ...]) -> None:
        known = self._pool.setdefault(first, [])
        if rest in known:
            known.remove(rest)
        elif len(known) == self._guesses:
            del known[0]
        known.append(rest)

    def _verification(self, room: int) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        parents: list[int] = []
        rows: dict[tuple[int, int], int] = {}
        for rest in reversed(self._pool.get(self._text[-1], ())):
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

    # ---- lookahead branch ------------------------------------------------------------------------------------------

    def _pick(self) -> int:
        """A token of the text, no two runs differing."""
        self._random = (self._random * _MULTIPLIER + _INCREMENT) % _MODULUS
        return self._text[(self._random >> 8) % len(self._text)]

    def _start_window(self, columns: int) -> None:
        self._columns = columns
        self._levels = [[self._pick() for _ in range(columns - 1)]]

    def _lookahead(self, tokens: list[int], parents: list[int]) -> None:
        """Level by level; a row's parent is the row before it in the chain, or the one above it in its column."""
        above = [-1]
        for level, ids in enumerate(self._levels):
            first = len(tokens)
            tokens.extend(ids)
            if level == 0:
                parents.extend([-1, *range(first, first + len(ids) - 1)][: len(ids)])
                above += range(first, first + len(ids))
            else:
                parents.extend(above[: len(ids)])
                above = list(range(first, first + len(ids)))

    def _improve(self, last: int, emitted: int, answers: Sequence[int]) -> bool:
        """One Jacobi step. True where it has moved the window by a token; False while the levels fill."""
        levels = self._levels
        ends = list(answers[len(answers) - len(levels[-1]) :])
        if len(levels) == 1:
            ends = [emitted, *ends]  # the end of column 0 is the last committed token itself
        if len(levels) < self._ngram - 1:
            levels.append(ends)
            return False
        for column, key in enumerate([last, *levels[0]]):
            self._remember(key, (*(level[column] for level in levels[1:]), ends[column]))
        above = [*levels[1:], ends]
        self._levels = [above[0][1:], *above[1:]]
        return True

    def _shift(self, count: int) -> None:
        """So many columns leave at the front, and as many join at the end."""
        for _ in range(count):
            for ids in self._levels:
                ids.append(self._pick())
                del ids[0]
