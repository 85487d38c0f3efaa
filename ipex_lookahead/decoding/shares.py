"""Who runs next where several owners ask for more than there is: each gets the same rows, as in deficit round robin.

A row is a token of a prompt that is read, or one of a sequence or its draft that is verified. While somebody waits,
each owner earns an equal part of every forward's rows and pays for its own; what one does not want is the others'. A
slot goes to whoever holds the fewest, a slot more counting as much as ``QUANTUM`` rows that are owed. With one owner
the order is that of submission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ipex_lookahead.decoding.sequence_group import SequenceGroup

QUANTUM = 64
"""Rows owed that are worth a slot; and rows that a group which was preempted computes before it may be again."""
_WORTH = 2.0
"""Slots, or rows worth as many, that one must be ahead of another to give a slot up: with less they would swap."""


class Shares:
    """What each owner has had of what it could have had.

    Args:
        slots: most groups at a time; None = all.
        per_owner: most of them of one owner; None = all.

    Attributes:
        owed: owner -> rows that it is behind (or, below 0, ahead of) an equal share, at most ``QUANTUM`` a slot.
    """

    def __init__(self, slots: int | None = None, per_owner: int | None = None) -> None:
        self.owed: dict[str, float] = {}
        self._most = float(QUANTUM * max(8 if slots is None else slots, 2))
        self._per_owner = per_owner
        self._groups: Counter[str] = Counter()

    def join(self, group: SequenceGroup) -> None:
        """It was submitted."""
        self._groups[group.owner] += 1

    def leave(self, group: SequenceGroup) -> None:
        """It is over."""
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
        """A forward had so many rows of each owner."""
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
        """Of those that wait, by number: the first of the owner whose turn it is. None: all have what they may."""
        held = Counter(group.owner for group in running)
        first: dict[str, SequenceGroup] = {}
        for group in waiting:
            if group.owner not in first and self._may_run(group.owner, held):
                first[group.owner] = group
        return min(first.values(), key=lambda group: (self._score(group.owner, held), group.id), default=None)

    def ahead_of(self, group: SequenceGroup, running: Sequence[SequenceGroup]) -> SequenceGroup | None:
        """Which of those that run is to make way for one that waits; None: its owner has its share, or must wait."""
        held = Counter(one.owner for one in running)
        least = self._score(group.owner, held) + _WORTH
        found = [one for one in running if self._score(one.owner, held) >= least and _had_its_turn(one)]
        return max(found, key=lambda one: (self._score(one.owner, held), one.id), default=None)

    def _may_run(self, owner: str, held: Mapping[str, int]) -> bool:
        return self._per_owner is None or held.get(owner, 0) < self._per_owner

    def _score(self, owner: str, held: Mapping[str, int]) -> float:
        """Slots that it holds, and what its rows are worth of them."""
        return held.get(owner, 0) - self.owed.get(owner, 0.0) / QUANTUM


def dispensable(running: Collection[SequenceGroup]) -> SequenceGroup:
    """Who gives up its memory: the youngest of the owner that has most groups; never the oldest of all."""
    seen: Counter[str] = Counter()
    ranks: list[tuple[int, int, SequenceGroup]] = []
    for group in sorted(running, key=lambda one: one.id):
        seen[group.owner] += 1
        ranks.append((seen[group.owner], group.id, group))
    return max(ranks)[2]


def by_owner(groups: Iterable[SequenceGroup]) -> list[list[SequenceGroup]]:
    """Groups in groups of one owner each, in the order in which owners appear."""
    by_key: dict[str, list[SequenceGroup]] = {}
    for group in groups:
        by_key.setdefault(group.owner, []).append(group)
    return list(by_key.values())


def _had_its_turn(group: SequenceGroup) -> bool:
    return all(sequence.cache.length >= group.spared for sequence in group.live)
