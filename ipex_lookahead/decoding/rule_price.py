"""What rules cost: grammars and processors run in the thread that decodes, and what they take all others wait for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol, TypeVar

SHARE = 0.25
"""Part of a forward's time by which expensive rules may lengthen a step, on average, for those with cheaper rules."""
LEAST = 1e-3
"""Seconds of a step that nobody is left out for."""
FOLLOW = 0.2
"""Weight of a new forward in the running mean."""


class Ruled(Hashable, Protocol):
    """Sequences that are one caller's.

    Attributes:
        id: numbers them in the order in which they came.
        rule_seconds: what choosing their tokens takes in a step, a running mean.
    """

    id: int
    rule_seconds: float


R = TypeVar("R", bound=Ruled)


class RulePrice:
    """Lets sequences with expensive rules sit out steps, as many as their rules cost.

    Every step earns them ``SHARE`` of a forward; the one that has sat out longest goes on once its rules are paid for.
    Where all of them have expensive rules none sits out. Times decide who shares a step, never what it emits.
    """

    def __init__(self) -> None:
        self._forward = self._earned = 0.0
        self._sat_out: dict[Ruled, int] = {}

    def took(self, seconds: float) -> None:
        """A forward without rows of prompts took so long."""
        self._forward += FOLLOW * (seconds - self._forward) if self._forward else seconds

    def sitting_out(self, groups: Sequence[R]) -> frozenset[R]:
        """Those of the groups that decode which are left out of this step."""
        allowed = SHARE * self._forward
        expensive = [group for group in groups if allowed and group.rule_seconds > max(allowed, LEAST)]
        if not expensive or len(expensive) == len(groups):
            self._sat_out.clear()
            return frozenset()
        self._earned = min(self._earned + allowed, max(group.rule_seconds for group in expensive))
        order = sorted(expensive, key=lambda group: (-self._sat_out.get(group, 0), group.id))
        out = []
        for group in order:
            if self._earned >= group.rule_seconds:
                self._earned -= group.rule_seconds
            else:
                out.append(group)
        self._sat_out = {group: self._sat_out.get(group, 0) + 1 for group in out}
        return frozenset(out)
