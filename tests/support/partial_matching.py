"""What csrc/drafting/predictor.cc says, again: short, slow, from dictionaries of tuples.

The same doubles in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

CONSIDERED, MEMORY, PRIOR, RANK_PRIOR, RECENT, BELOW, WIDTH = 6, 64, 8.0, 16.0, 0.3, 2.0, 8

ESCAPES = {
    "store": [
        [0.72, 0.43, 0.70, 0.43, 0.64, 0.13, 0.33],
        [0.58, 0.45, 0.66, 0.28, 0.50, 0.10, 0.32],
        [0.52, 0.38, 0.56, 0.24, 0.49, 0.10, 0.32],
        [0.48, 0.38, 0.56, 0.17, 0.48, 0.10, 0.32],
        [0.41, 0.26, 0.55, 0.13, 0.41, 0.06, 0.18],
        [0.33, 0.24, 0.55, 0.06, 0.38, 0.02, 0.12],
    ],
    "suffix": [
        [0.38, 0.28, 0.44, 0.11, 0.36, 0.02, 0.17],
        [0.25, 0.17, 0.33, 0.06, 0.26, 0.01, 0.09],
        [0.19, 0.11, 0.35, 0.04, 0.22, 0.01, 0.09],
        [0.16, 0.09, 0.35, 0.03, 0.19, 0.01, 0.09],
        [0.12, 0.07, 0.34, 0.02, 0.18, 0.01, 0.09],
        [0.10, 0.04, 0.36, 0.01, 0.20, 0.01, 0.08],
    ],
}
RANKS = [
    [0.48, 0.103, 0.049, 0.034, 0.023, 0.018, 0.014, 0.011],
    [0.70, 0.086, 0.039, 0.024, 0.014, 0.012, 0.009, 0.005],
]

Counts = dict[tuple[int, ...], dict[int, int]]


def counts(texts: Sequence[Sequence[int]], depth: int) -> Counts:
    """For every context of 1 to ``depth`` tokens its followers and how often they came, the most recent last."""
    found: Counts = {}
    for text in texts:
        for at in range(1, len(text)):
            for length in range(1, min(depth, at) + 1):
                followers = found.setdefault(tuple(text[at - length : at]), {})
                followers[text[at]] = followers.pop(text[at], 0) + 1
    return found


class Twin:
    def __init__(self, depth: int, width: int, store: Sequence[Sequence[int]] | None = None) -> None:
        self.depth, self.width = depth, width
        self.sources = ["store"] * (store is not None) + ["suffix"] * (depth > 0)
        self.store = counts(store or [], 16)
        self.store_depth = 16

    def begin(self, prompt: Sequence[int], hidden: object = None) -> None:
        self.text: list[int] = []
        self.rows: dict[tuple[int, ...], list[int]] = {}
        self.ranks = [[[RANK_PRIOR * share for share in row], RANK_PRIOR] for row in RANKS]
        self.escapes = {
            (source, row, column): [PRIOR * share, PRIOR]
            for source, table in ESCAPES.items()
            for row, line in enumerate(table)
            for column, share in enumerate(line)
        }
        self.own: Counts = {}
        for token in prompt:
            if self.depth == 0 and self.width and self.text:
                row = self.rows.setdefault((self.text[-1],), [])
                row[:] = [token, *(t for t in row if t != token)][: self.width]
            self.commit(token)

    def commit(self, token: int) -> None:
        self.learn(token)
        self.text.append(token)
        at = len(self.text) - 1
        for length in range(1, min(self.depth, at) + 1):
            followers = self.own.setdefault(tuple(self.text[at - length : at]), {})
            followers[token] = followers.pop(token, 0) + 1

    def observe(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        emitted: Sequence[int],
        top: Sequence[Sequence[int]] | None = None,
    ) -> None:
        before = self.text[-2:]
        for token in emitted:
            self.commit(token)
        paths: list[list[int]] = []
        for row, ids in enumerate(top or []):
            if row == 0:
                path = before
            else:
                parent = parents[row - 1]
                path = [*(before if parent < 0 else paths[parent]), tokens[row - 1]]
                paths.append(path)
            for order in (1, 2):
                if self.width and len(path) >= order and ids and ids[0] >= 0:
                    self.rows[tuple(path[-order:])] = list(dict.fromkeys(takewhile(lambda t: t >= 0, ids)))[
                        : self.width
                    ]

    def contexts(self, path: list[int]):
        """(kind, key) of what is known about what follows the path, the shortest contexts first."""
        for length in range(17):
            context = tuple(path[-length:]) if 0 < length <= len(path) else None
            if context and length <= 2 and context in self.rows:
                yield "recycling", context
            for source in self.sources:
                known = self.own if source == "suffix" else self.store
                if context and context in known:
                    yield source, context

    def escape(self, source: str, context: tuple[int, ...]) -> list[float]:
        followers = (self.own if source == "suffix" else self.store)[context]
        total, several = sum(followers.values()), len(followers) > 1
        row = len(context) - 1 if len(context) < 5 else 4 if len(context) < 7 else 5
        column = 0 if total == 1 else (1 if total == 2 else 3 if total < 6 else 5) + several
        return self.escapes[source, row, column]

    def learn(self, token: int) -> None:
        # All contexts of a source first, then the next source, as the native core does it.
        for wanted in ("suffix", "store", "recycling"):
            for source, context in list(self.contexts(self.text)):
                if source != wanted:
                    continue
                if source == "recycling":
                    ranks = self.ranks[len(context) - 1]
                    if ranks[1] >= 4 * MEMORY:
                        ranks[0], ranks[1] = [h * 0.5 for h in ranks[0]], ranks[1] * 0.5
                    ranks[1] += 1
                    row = self.rows[context]
                    if token in row:
                        ranks[0][row.index(token)] += 1
                else:
                    cell = self.escape(source, context)
                    if cell[1] >= MEMORY:
                        cell[0], cell[1] = cell[0] * 0.5, cell[1] * 0.5
                    cell[1] += 1
                    cell[0] += token not in (self.own if source == "suffix" else self.store)[context]

    def predict(self, path: list[int]) -> dict[int, tuple[float, str]]:
        guesses: dict[int, tuple[float, str]] = {}
        for source, context in self.contexts(path):
            if source == "recycling":
                hits, trials = self.ranks[len(context) - 1]
                weights = {t: hits[rank] for rank, t in enumerate(self.rows[context])}
                total = 0.0
                for w in weights.values():
                    total += w
                out = 1 - total / trials
            else:
                followers = (self.own if source == "suffix" else self.store)[context]
                recent = list(reversed(followers.items()))[:CONSIDERED]
                weights = {t: c + (RECENT if i == 0 else 0.0) for i, (t, c) in enumerate(recent)}
                total = 0.0
                for w in weights.values():
                    total += w
                missed, trials = self.escape(source, context)
                out = missed / trials
            before = 0.0
            for t in weights:
                guesses.setdefault(t, (0.0, source))
                before += guesses[t][0]
            inside = (1 - out) / (total + (BELOW if before > 0 else 0))
            below = BELOW / before if before > 0 else 0.0
            rest = out / (1 - before) if before < 0.99 else out / 0.01
            for t, (p, name) in guesses.items():
                if t in weights:
                    guesses[t] = (inside * (weights[t] + below * p), source)
                else:
                    guesses[t] = (p * rest, name)
        return guesses

    def propose(self, budget: int) -> tuple[list[int], list[int], list[float], list[str]]:
        tokens, parents, probs, sources = [], [], [], []
        paths: list[list[int]] = []
        open_: list[tuple[float, int, int, int, float, str]] = []
        order = 0

        def look(path: list[int], parent: int, survival: float) -> None:
            nonlocal order
            for token, (p, source) in self.predict(path).items():
                open_.append((-survival * p, order, parent, token, p, source))
                order += 1

        if budget > 0:
            look(self.text, -1, 1.0)
        while open_ and len(tokens) < budget:
            best = min(open_)
            open_.remove(best)
            survival, _, parent, token, p, source = best
            tokens.append(token)
            parents.append(parent)
            probs.append(p)
            sources.append(source)
            paths.append([*(self.text if parent < 0 else paths[parent]), token])
            look(paths[-1], len(tokens) - 1, -survival)
        return tokens, parents, probs, sources
