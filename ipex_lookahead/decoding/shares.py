"""Fairness between owners: each gets the same rows, as in deficit round robin.

A row is a prompt token that is read, or a token of a sequence or its draft that is verified. While a group waits, each
owner earns an equal part of every forward's rows and pays for its own rows; rows that an owner does not need go to the
others. A slot goes to the owner with the fewest; one slot more counts as ``QUANTUM`` owed rows. With one owner, groups
run in the order of submission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ipex_lookahead.decoding.sequence_group import SequenceGroup

QUANTUM = 64
"""Owed rows that count as one slot, and rows that a preempted group computes before its next preemption."""
LEAST_CHUNK = 8
"""Prompt rows that are read in every step in which a prompt waits."""
_WORTH = 2.0
"""Lead in slots (or rows, by ``QUANTUM``) at which an owner loses a slot: with a smaller one owners would swap."""


class Shares:
    """The rows that each owner is ahead of or behind an equal share.

    Args:
        slots: largest number of running groups; None = no limit.
        per_owner: the same for one owner; None = no limit.

    Attributes:
        owed: owner -> rows that it is behind (below 0: ahead of) an equal share, at most ``QUANTUM`` per slot.
    """

    def __init__(self, slots: int | None = None, per_owner: int | None = None) -> None:
        self.owed: dict[str, float] = {}
        self._most = float(QUANTUM * max(8 if slots is None else slots, 2))
        self._per_owner = per_owner
        self._groups: Counter[str] = Counter()

    def join(self, group: SequenceGroup) -> None:
        """Note a submitted group."""
        self._groups[group.owner] += 1

    def leave(self, group: SequenceGroup) -> None:
        """Note a group that has ended."""
        self._groups[group.owner] -= 1
        if not self._groups[group.owner]:
            del self._groups[group.owner]

    @property
    def several(self) -> bool:
        """Whether there are groups of more than one owner."""
        return len(self._groups) > 1

    @property
    def counts(self) -> bool:
        """Whether rows are counted: ``took`` needs them."""
        return self.several or bool(self.owed)

    def took(self, rows: Mapping[str, int], waiting: Iterable[SequenceGroup], running: Sequence[SequenceGroup]) -> None:
        """Note the rows of a forward by owner."""
        held = Counter(group.owner for group in running)
        hungry = {group.owner for group in waiting if self._may_run(group.owner, held)}
        if not hungry:  # there is enough for all
            self.owed.clear()
            return
        owners = {*self._groups, *self.owed}
        equal, spare = sum(rows.values()) / len(owners), 0.0
        for owner in owners:
            owed = self.owed.get(owner, 0.0) + equal - rows.get(owner, 0)
            if owner not in hungry and owed > 0:
                spare, owed = spare + owed, 0.0
            self.owed[owner] = owed
        for owner in hungry:
            self.owed[owner] += spare / len(hungry)
        self.owed = {
            owner: max(-self._most, min(self._most, owed))
            for owner, owed in self.owed.items()
            if owed or owner in self._groups
        }

    def next_of(self, waiting: Iterable[SequenceGroup], running: Sequence[SequenceGroup]) -> SequenceGroup | None:
        """Return the next of the waiting groups, which are by number; None: every owner has its largest number."""
        held = Counter(group.owner for group in running)
        first: dict[str, SequenceGroup] = {}
        for group in waiting:
            if group.owner not in first and self._may_run(group.owner, held):
                first[group.owner] = group
        return min(first.values(), key=lambda group: (self._score(group.owner, held), group.id), default=None)

    def ahead_of(self, group: SequenceGroup, running: Sequence[SequenceGroup]) -> SequenceGroup | None:
        """Return the running group to preempt for a waiting one; None: its owner has its share, or must wait."""
        held = Counter(one.owner for one in running)
        least = self._score(group.owner, held) + _WORTH
        found = [one for one in running if self._score(one.owner, held) >= least and _had_its_turn(one)]
        return max(found, key=lambda one: (self._score(one.owner, held), one.id), default=None)

    def _may_run(self, owner: str, held: Mapping[str, int]) -> bool:
        return self._per_owner is None or held.get(owner, 0) < self._per_owner

    def _score(self, owner: str, held: Mapping[str, int]) -> float:
        """Return the slots that an owner holds, minus its owed rows in slots."""
        return held.get(owner, 0) - self.owed.get(owner, 0.0) / QUANTUM


def dispensable(running: Collection[SequenceGroup]) -> SequenceGroup:
    """Return the group to preempt for memory: the youngest of the owner with most groups, never the oldest of all."""
    seen: Counter[str] = Counter()
    ranks: list[tuple[int, int, SequenceGroup]] = []
    for group in sorted(running, key=lambda one: one.id):
        seen[group.owner] += 1
        ranks.append((seen[group.owner], group.id, group))
    return max(ranks)[2]


def by_owner(groups: Iterable[SequenceGroup]) -> list[list[SequenceGroup]]:
    """Return the groups of each owner, in the order in which owners appear."""
    by_key: dict[str, list[SequenceGroup]] = {}
    for group in groups:
        by_key.setdefault(group.owner, []).append(group)
    return list(by_key.values())


def share_of(room: int, among: int) -> int:
    """Return the share of a step's prompt rows of the first of ``among`` groups."""
    return min(room, max(LEAST_CHUNK, room // among))


def _had_its_turn(group: SequenceGroup) -> bool:
    return all(sequence.cache.length >= group.spared for sequence in group.live)
