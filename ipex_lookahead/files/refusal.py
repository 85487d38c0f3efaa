"""Keys of files, calls and requests that are refused unless they have a harmless value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason for refusing a key.

    Attributes:
        reason: the unsupported effect of the key, or the alternative.
        unless: values without effect.
        hint: the ``hint`` of the error.
    """

    reason: str = ""
    unless: tuple[Any, ...] = ()
    hint: str = ""

    def refuses(self, value: Any) -> bool:
        """Return True if the value has an effect."""
        return not any(same(value, one) for one in self.unless)


def same(value: Any, other: Any) -> bool:
    """Return True if two JSON values are equal; unlike in Python, true differs from 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
