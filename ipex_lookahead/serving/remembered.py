"""Responses that later requests name: kept in memory, bounded, apart for each API key and salt."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Item = Mapping[str, Any]
"""One of a response's input or output."""
_RESPONSE_BYTES = 1024
"""Most bytes that Python takes for a response in addition to its JSON: objects and places in tables."""
_ITEM_BYTES = 64
"""The same for an item of its conversation."""
_OWN_BYTES = 512
"""The same for an item of its output, which is found by its id."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A response: its conversation, and the ids of its output, which is the conversation's end.

    Items are kept as JSON: parsed they take up to 40 times the memory of their text.
    """

    items: tuple[bytes, ...]
    own: tuple[str, ...]
    size: int
    response: bytes


class Remembered:
    """Conversations by the id of the response that they led to; the least recently used are dropped first.

    Args:
        key_bytes: most bytes of memory for one key.
        all_bytes: of all together; the key that has most loses first.
    """

    def __init__(self, key_bytes: int, all_bytes: int) -> None:
        self._key_bytes, self._all_bytes = key_bytes, all_bytes
        self._kept: dict[str, OrderedDict[tuple[str, str], _Kept]] = {}
        self._places: dict[tuple[str, str, str], tuple[str, int]] = {}  # item -> response, place from the end
        self._sizes: dict[str, int] = {}

    def resize(self, key_bytes: int, all_bytes: int) -> None:
        """Set larger limits."""
        self._key_bytes, self._all_bytes = key_bytes, all_bytes

    def keep(
        self,
        key: str,
        salt: str,
        number: str,
        before: Sequence[Item],
        output: Sequence[Item],
        response: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep a response: the items that it was made of, its own, and its other fields."""
        items = tuple(map(_packed, [*before, *output]))
        own = tuple(str(item["id"]) for item in output)
        fields = _packed(response or {})
        names = 4 * sum(map(len, (key, salt, number, *own)))
        size = sum(map(len, items)) + len(fields) + names
        size += _RESPONSE_BYTES + _ITEM_BYTES * len(items) + _OWN_BYTES * len(own)
        if size > self._key_bytes:
            return
        self._kept.setdefault(key, OrderedDict())[salt, number] = _Kept(items, own, size, fields)
        self._places.update({(key, salt, one): (number, at - len(own)) for at, one in enumerate(own)})
        self._sizes[key] = self._sizes.get(key, 0) + size
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
        return list(map(json.loads, own[salt, number].items))

    def item(self, key: str, salt: str, number: str) -> Item | None:
        """An item of a response's output; None where it is not known to this key and salt."""
        if (place := self._places.get((key, salt, number))) is None:
            return None
        response, at = place
        found: Item = json.loads(self._kept[key][salt, response].items[at])
        return found

    def response(self, key: str, salt: str, number: str) -> tuple[dict[str, Any], Sequence[Item]] | None:
        """A response with its output, and the items that it was made of; None as ``conversation``."""
        items = self.conversation(key, salt, number)
        if items is None:
            return None
        kept = self._kept[key][salt, number]
        at = len(items) - len(kept.own)
        return {**json.loads(kept.response), "output": list(items[at:])}, items[:at]

    def forget(self, key: str, salt: str, number: str) -> bool:
        """Drop a response and its items; False where it is not known to this key and salt."""
        kept = self._kept.get(key, OrderedDict()).pop((salt, number), None)
        if kept is not None:
            self._release(key, salt, kept)
        return kept is not None

    def _drop(self, key: str) -> None:
        (salt, _), kept = self._kept[key].popitem(last=False)
        self._release(key, salt, kept)

    def _release(self, key: str, salt: str, kept: _Kept) -> None:
        self._sizes[key] -= kept.size
        for one in kept.own:
            self._places.pop((key, salt, one), None)
        if not self._kept[key]:
            del self._kept[key], self._sizes[key]


def _packed(item: Item) -> bytes:
    return json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
