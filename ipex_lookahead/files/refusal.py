"""Keys of files, calls and requests that are refused, unless their value asks for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a key is refused.

    Attributes:
        reason: what its values ask for, or what to do instead.
        unless: the values that ask for nothing.
        hint: the ``hint`` of the error.
    """

    reason: str = ""
    unless: tuple[Any, ...] = ()
    hint: str = ""

    def refuses(self, value: Any) -> bool:
        """Whether the value asks for something."""
        return not any(same(value, one) for one in self.unless)


def same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal; Python holds true and 1 equal, JSON does not."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
