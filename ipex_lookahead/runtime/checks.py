"""Arguments outside what is allowed, in one kind of sentence."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ipex_lookahead.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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


def check_prompt(prompt: npt.NDArray[np.int32], rows: int, vocabulary: Callable[[], Mapping[str, int]]) -> None:
    """Raise InputError, with the token's name, for a token of a prompt without a row of the embedding."""
    wrong = prompt[(prompt < 0) | (prompt >= rows)]
    if len(wrong):
        token = next((f"{t[:80]!r}, id {i}" for t, i in vocabulary().items() if i == wrong[0]), f"id {wrong[0]}")
        raise InputError(
            f"the prompt has a token without an embedding: {token}; valid ids are 0 to {rows - 1}",
            hint="remove the token from the prompt",
        )
