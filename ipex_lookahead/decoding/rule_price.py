"""The price of rules: grammars and processors run in the decoding thread, and all other groups wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.decoding.sequence_group import FOLLOW, SequenceGroup

SHARE = 0.25
"""Part of a forward's time by which expensive rules may lengthen a step, on average, for other sequences."""
LEAST = 1e-3
"""Seconds per step below which rules have no price."""


class RulePrice:
    """Lets groups with expensive rules sit out steps in proportion to the time of their rules.

    Every step earns ``SHARE`` of a forward's time; the group that has sat out longest continues once its rules are paid
    for. If all groups have expensive rules, none sits out. Times decide which groups share a step, never their tokens.
    """

    def __init__(self) -> None:
        self._forward = self._earned = 0.0
        self._sat_out: dict[SequenceGroup, int] = {}

    def took(self, seconds: float) -> None:
        """Note the seconds of a forward without prompt rows."""
        self._forward += FOLLOW * (seconds - self._forward) if self._forward else seconds

    def sitting_out(self, groups: Sequence[SequenceGroup]) -> frozenset[SequenceGroup]:
        """Return the decoding groups that sit out this step."""
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
