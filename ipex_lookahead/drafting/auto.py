"""Auto: every source that costs nothing, in one tree; and, where rows cost nothing either, a window that makes more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.partial_matching import LONGEST_CONTEXT, SUCCESSORS, PartialMatching
from ipex_lookahead.drafting.window import NGramPool, Window
from ipex_lookahead.engines.base import Hidden

COLUMNS, NGRAM, GUESSES = 5, 4, 5
"""W, N and G. 14 rows bring 3 % more tokens a step beside a tree of 16; W = 15, N = 5 brings as much with 59
(SmolLM2-135M, 20 prompts)."""
FIRST_PROB, LATER_PROB = 0.3, 0.6
"""What an n-gram's first token, and a later one, is thought to be worth until the controller has counted."""


class Auto(PartialMatching):
    """Suffixes of the own text and of the store, and recycled successors, mixed into one tree without double siblings.

    Prompt lookup's long copies are the suffixes' longest contexts. A token that several sources name gets one row, the
    name of the source with the longest context, and a probability from all of them.

    Example: after ``[9, 1, 2]`` the target emitted 3 and thought 4 likely too. When ``9 1 2`` comes again, 3 and 4 both
    follow the last 2, each once: 3 from ``suffix`` (``recycling`` agrees), 4 from ``recycling`` alone.

    Lookahead Decoding's window is offered as optional scratch rows. Once they have been evaluated it moves with the
    text, and the n-grams that it brings join the tree, named ``jacobi``. That pays where a forward of 20 rows costs
    what one of 5 does; the controller takes them there.

    Args:
        store: counted suffixes of earlier texts (``Store.suffixes``), or None.
    """

    def __init__(self, store: Any = None) -> None:
        super().__init__(depth=LONGEST_CONTEXT, width=SUCCESSORS, store=store)
        self._window: Window | None = None
        self._moving = False

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Forget everything, then index the prompt. Raises InputError for ids that are no int32 >= 0."""
        super().begin(prompt, hidden)
        self._window = Window(COLUMNS, NGRAM, prompt) if len(prompt) else None
        self._optional, self._moving, self._pool = self._window, False, NGramPool(GUESSES)
        self._last = prompt[-1] if len(prompt) else -1

    def propose(self, budget: int) -> Draft:
        """A tree of at most ``budget`` tokens, the most likely paths first, with ``probs`` and ``sources``."""
        draft = super().propose(budget)
        return self._with_ngrams(draft) if self._moving else draft

    def observe(self, outcome: Outcome) -> None:
        """Index the newly committed tokens, keep the likeliest ids after the tree's rows, and move the window."""
        emitted = outcome.emitted
        if outcome.draft.scratch:
            self._moving = True
        if self._moving and self._window is not None and emitted:
            for first, rest in self._window.observe(self._last, emitted, outcome.scratch_argmax):
                self._pool.remember(first, rest)
            outcome = _without_scratch(outcome)
        super().observe(outcome)
        if emitted:
            self._last = emitted[-1]

    def _with_ngrams(self, draft: Draft) -> Draft:
        """The likeliest of the draft's tokens and the pool's n-grams."""
        ngrams = self._pool.following(self._last)
        if not ngrams:
            return draft
        tokens, parents = list(draft.tokens), list(draft.parents)
        probs, sources = list(draft.probs), list(draft.sources)
        rows = {place: row for row, place in enumerate(zip(parents, tokens, strict=True))}
        for ngram in ngrams:
            at = -1
            for token in ngram:
                row = rows.setdefault((at, token), len(tokens))
                if row == len(tokens):
                    tokens.append(token)
                    parents.append(at)
                    probs.append(FIRST_PROB if at < 0 else LATER_PROB)
                    sources.append(Window.source)
                at = row
        survival: list[float] = []
        for parent, prob in zip(parents, probs, strict=True):
            survival.append(prob * (1.0 if parent < 0 else survival[parent]))
        # The sort is stable and no child is likelier than its parent, so parents stay before children.
        order = sorted(range(len(tokens)), key=lambda row: -survival[row])[: draft.room]
        place = {row: at for at, row in enumerate(order)}
        return Draft(
            [tokens[row] for row in order],
            [place.get(parents[row], -1) for row in order],
            0,
            [probs[row] for row in order],
            [sources[row] for row in order],
            0,
            draft.optional,
            draft.room,
        )


def _without_scratch(outcome: Outcome) -> Outcome:
    """What guesses made the model think is not what it thinks after the text: its likeliest ids there are left out."""
    draft, top = outcome.draft, outcome.top
    if not draft.scratch:
        return outcome
    end = len(draft.tokens) - draft.scratch
    kept = Draft(draft.tokens[:end], draft.parents[:end])
    return Outcome(kept, outcome.accepted, outcome.emitted, (), None if top is None else top[: end + 1])
