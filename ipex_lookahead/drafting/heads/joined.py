"""A trained head next to the free sources: its chain replaces their tree, or follows their most likely path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import Hidden, OutputRequest

SOURCE = "head"
"""Name of a head's tokens in ``Draft.sources``."""
MAX_CHAIN = 8
"""Longest chain of a head, tokens: EAGLE-3 is published with 5 to 7."""


@dataclass(slots=True)
class HeadPlan:
    """What a head drafts in a step.

    Attributes:
        path: rows of the free draft that the chain follows, root first.
        count: longest chain, tokens.
        least: the chain ends with the token with which all of it is less likely right, 0 to 1.
    """

    path: Sequence[int]
    count: int
    least: float = 0.0


class Chain(Proposer, Protocol):
    """A proposer of chains that may follow copied tokens: :class:`~ipex_lookahead.drafting.heads.chain.HeadChain`."""

    def propose_after(self, copied: Sequence[int], budget: int, min_chance: float = 0.0) -> Draft:
        """Return a chain that follows ``copied`` tokens, which are not part of it."""
        ...


class HeadAndFree:
    """Drafts with the free sources, with a head, or with both in one chain.

    Args:
        free: drafts with ``probs`` and ``sources``, such as :class:`~ipex_lookahead.drafting.auto.Auto`; None: the head
            drafts alone.
        head: the head.
        plan: called with the free draft and the most tokens of path and chain; returns what the head drafts, or None.
            Without it the head drafts, as much as it may, where the free sources draft nothing.
    """

    def __init__(
        self, free: Proposer | None, head: Chain, plan: Callable[[Draft, int], HeadPlan | None] | None = None
    ) -> None:
        self._free, self._head = free, head
        self._plan = _fill if plan is None else plan

    @property
    def wants(self) -> OutputRequest:
        """What both want."""
        return self._head.wants if self._free is None else self._free.wants | self._head.wants

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Show both the text."""
        if self._free is not None:
            self._free.begin(prompt)
        self._head.begin(prompt, hidden)

    def propose(self, budget: int) -> Draft:
        """Return the free sources' tree, the head's chain, or a path of the tree and the chain behind it."""
        draft = Draft() if self._free is None else self._free.propose(budget)
        plan = self._plan(draft, min(budget, MAX_CHAIN))
        if plan is None:
            return draft
        copied = [draft.tokens[row] for row in plan.path]
        chain = self._head.propose_after(copied, plan.count, plan.least)
        if not chain.tokens:
            return draft
        tokens = [*copied, *chain.tokens]
        probs = [*(draft.probs[row] for row in plan.path), *chain.probs]
        sources = [draft.sources[row] if draft.sources else "copy" for row in plan.path] + [SOURCE] * len(chain)
        return Draft(tokens, range(-1, len(tokens) - 1), 0, probs, sources, seconds=chain.seconds)

    def observe(self, outcome: Outcome) -> None:
        """Show both what was emitted."""
        self._head.observe(outcome)
        if self._free is not None:
            self._free.observe(outcome)


def _fill(free: Draft, most: int) -> HeadPlan | None:
    return None if free.tokens else HeadPlan([], most)
