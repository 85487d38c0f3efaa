"""Prompt lookup: copies the tokens that followed the last occurrence of the current suffix.

This is prompt lookup decoding (Apoorv Saxena, 2023), which ipex-llm offers as ``lookahead=N``. Every n-gram of the
committed tokens is indexed, including those inside a multi-token accept. The most recent occurrence is copied, or on
request the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX, Hidden

_TOKEN_BITS = 32


class PromptLookup:
    """Copies the tokens after the most recent earlier occurrence of the longest matching suffix.

    With ``max_ngram = 2`` and the committed tokens ``[1, 2, 3, 4, 2, 3]`` the suffix ``2 3`` occurred before, followed
    by ``4 2 3``: ``propose(2)`` returns the chain ``4 2``. After ``[1, 2, 9, 3, 2]`` no 2-gram matches, but the 1-gram
    ``2`` does: the chain is ``9 3``. A copy that reaches the end of the text continues with itself: ``[7, 8, 7, 8]``
    gives ``7 8 7 8 7``. With ``occurrence="first"``, ``[2, 5, 2, 6, 2]`` gives ``5 2`` instead of ``6 2``.

    The index is a trie of reversed suffixes. Each node is an n-gram (n = 1 .. ``max_ngram``) with the position of its
    last (or first) end. Committing a token walks its ``max_ngram`` suffixes once: the deepest existing node is the
    longest match, and its previous position the occurrence. A token costs O(max_ngram), a proposal O(budget).

    Args:
        max_ngram: longest suffix to match.
        occurrence: "last" or "first", the occurrence that is copied.
    """

    wants = ARGMAX

    def __init__(self, max_ngram: int = 3, occurrence: str = "last") -> None:
        self._max_ngram = max_ngram
        self._follow = occurrence == "last"
        self.begin(())

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Reset, then index the prompt."""
        self._tokens: list[int] = []
        # Node 0 is the empty suffix; children are keyed by (node, the preceding token) packed into an integer.
        self._children: dict[int, int] = {}
        self._ended_at: list[int] = [-1]
        self._match = -1
        self._match_length = 0
        for token in prompt:
            self._commit(token)

    def propose(self, budget: int) -> Draft:
        """Return the tokens after the match, at most ``budget``; empty if no suffix occurred before."""
        if budget <= 0 or self._match < 0:
            return Draft()
        start = self._match + 1
        found = self._tokens[start : start + budget]
        period = len(found)
        while len(found) < budget:
            found.append(found[len(found) - period])
        return Draft.chain(found, self._match_length)

    def observe(self, outcome: Outcome) -> None:
        """Index the newly committed tokens."""
        for token in outcome.emitted:
            self._commit(token)

    def _commit(self, token: int) -> None:
        tokens, children, ended_at = self._tokens, self._children, self._ended_at
        tokens.append(token)
        here = len(tokens) - 1
        node, match, length = 0, -1, 0
        for at in range(here, max(-1, here - self._max_ngram), -1):
            key = node << _TOKEN_BITS | tokens[at]
            child = children.get(key)
            if child is None:
                child = children[key] = len(ended_at)
                ended_at.append(here)
            else:
                match, length = ended_at[child], here - at + 1
                if self._follow:
                    ended_at[child] = here
            node = child
        self._match, self._match_length = match, length
