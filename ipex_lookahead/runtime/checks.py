"""Arguments outside what is allowed, in one kind of sentence."""

from __future__ import annotations

import math
import operator
from typing import Any

from ipex_lookahead.errors import InputError


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number in a range, or InputError."""
    allowed = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(argument=name, got=value, allowed=allowed) from None
    if isinstance(value, bool) or number < low or (high is not None and number > high):
        raise InputError(argument=name, got=value, allowed=allowed)
    return number


def number(name: str, value: Any, low: float, high: float, *, above: bool = False) -> float:
    """A finite number in ``[low, high]``, or in ``(low, high]`` with ``above``; or InputError."""
    upper = "" if math.isinf(high) else f" and at most {high:g}"
    allowed = f"a number {'above' if above else 'of at least'} {low:g}{upper}"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(argument=name, got=value, allowed=allowed) from None
    if isinstance(value, bool) or not math.isfinite(number) or not low <= number <= high or (above and number == low):
        raise InputError(argument=name, got=value, allowed=allowed)
    return number


def flag(name: str, value: Any) -> bool:
    """True or False, or InputError."""
    if not isinstance(value, bool):
        raise InputError(argument=name, got=value, allowed="True or False")
    return value


def token_ids(name: str, value: Any, vocab_size: int) -> tuple[int, ...]:
    """One token id or several, as a tuple; None is the empty one."""
    if value is None:
        return ()
    if hasattr(value, "tolist"):
        value = value.tolist()
    values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
    # Negative ids are Hugging Face's way of saying "none" in older configurations.
    return tuple(integer(name, v, -1, vocab_size - 1) for v in values if v != -1)
