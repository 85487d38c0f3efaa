"""The special tokens around a text, or around the two texts of a pair, and the type of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models

FIRST, SECOND = -1, -2
"""Places of the texts in a :class:`Layout`."""
_PROBES = {"A": 1 << 31, "B": (1 << 31) + 1}
"""Ids of two probe texts, above all ids of vocabularies."""
_PLACES = {_PROBES["A"]: FIRST, _PROBES["B"]: SECOND}

Part = tuple[int, int]
"""A special token's id, ``FIRST`` or ``SECOND``, and the token type."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a tokenizer adds to texts.

    Attributes:
        single: parts of a single text, in order.
        pair: parts of a pair, in order.
    """

    single: tuple[Part, ...] = ((FIRST, 0),)
    pair: tuple[Part, ...] = ((FIRST, 0), (SECOND, 1))

    @classmethod
    def of(cls, processor: Any) -> Layout:
        """Return the layout of a post-processor of the ``tokenizers`` library; None adds nothing."""
        if processor is None:
            return cls()
        core = Tokenizer(models.WordLevel(_PROBES, unk_token="A"))
        core.post_processor = processor
        return cls(*(_parts(core.encode(*texts)) for texts in (("A",), ("A", "B"))))

    @classmethod
    def around(cls, before: Sequence[int], after: Sequence[int]) -> Layout:
        """Return the layout with ``before`` and ``after`` around each text."""
        sides = [
            (*((i, kind) for i in before), (place, kind), *((i, kind) for i in after))
            for kind, place in enumerate((FIRST, SECOND))
        ]
        return cls(sides[0], sides[0] + sides[1])

    def added(self, *, pair: bool = False) -> int:
        """Return the number of special tokens."""
        return sum(i >= 0 for i, _ in (self.pair if pair else self.single))

    def arrange(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Return the ids and the types of a text, or of a pair, with special tokens."""
        texts = {FIRST: first, SECOND: () if second is None else second}
        ids: list[int] = []
        types: list[int] = []
        for i, kind in self.single if second is None else self.pair:
            found = texts.get(i, (i,))
            ids += found
            types += [kind] * len(found)
        return ids, types


def _parts(encoding: Any) -> tuple[Part, ...]:
    return tuple((_PLACES.get(i, i), kind) for i, kind in zip(encoding.ids, encoding.type_ids, strict=True))
