"""Responses that later requests name: kept in memory, bounded, apart for each API key and salt."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Item = Mapping[str, Any]
"""One of a response's input or output."""


@dataclass(frozen=True, slots=True)
class _Kept:
    items: Sequence[Item]
    own: Sequence[Item]
    size: int


class Remembered:
    """Conversations by the number of the response that they led to; the least recently used are dropped first.

    Args:
        key_bytes: most bytes of one key's, as JSON.
        all_bytes: of all together; the key that has most loses first.
    """

    def __init__(self, key_bytes: int, all_bytes: int) -> None:
        self._key_bytes, self._all_bytes = key_bytes, all_bytes
        self._kept: dict[str, OrderedDict[tuple[str, str], _Kept]] = {}
        self._items: dict[tuple[str, str, str], Item] = {}
        self._sizes: dict[str, int] = {}

    def keep(self, key: str, salt: str, number: str, before: Sequence[Item], output: Sequence[Item]) -> None:
        """Keep a response: the items that it was made of, and its own."""
        items = [*before, *output]
        kept = _Kept(items, output, len(json.dumps(items)))
        if kept.size > self._key_bytes:
            return
        self._kept.setdefault(key, OrderedDict())[salt, number] = kept
        self._items.update({(key, salt, str(item["id"])): item for item in output})
        self._sizes[key] = self._sizes.get(key, 0) + kept.size
        while self._sizes[key] > self._key_bytes:
            self._drop(key)
        while sum(self._sizes.values()) > self._all_bytes:
            self._drop(max(self._sizes, key=self._sizes.__getitem__))

    def conversation(self, key: str, salt: str, number: str) -> Sequence[Item] | None:
        """The items up to a response, its own included; None where it is not known to this key and salt."""
        own = self._kept.get(key)
        if own is None or (salt, number) not in own:
            return None
        own.move_to_end((salt, number))
        return own[salt, number].items

    def item(self, key: str, salt: str, number: str) -> Item | None:
        """An item of a response's output; None where it is not known to this key and salt."""
        return self._items.get((key, salt, number))

    def _drop(self, key: str) -> None:
        (salt, _), kept = self._kept[key].popitem(last=False)
        self._sizes[key] -= kept.size
        for item in kept.own:
            self._items.pop((key, salt, str(item["id"])), None)
        if not self._kept[key]:
            del self._kept[key], self._sizes[key]
