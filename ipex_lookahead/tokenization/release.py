"""Differences between releases of the tokenizers library, from 0.15 (for ipex-llm) to 0.23."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tokenizers

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError

TOKENIZERS = tuple(int(part) for part in tokenizers.__version__.split(".")[:2])
"""(major, minor) of the installed library."""


def check_whole_words(wanted: bool) -> None:
    """Raise UnsupportedModelError for ``ignore_merges`` if the installed library does not support it."""
    if wanted and TOKENIZERS < (0, 19):
        raise UnsupportedModelError(
            "this tokenizer uses ignore_merges, as Llama 3's does, which needs tokenizers 0.19;"
            f" {tokenizers.__version__} is installed"
        )


@contextmanager
def panics_typed() -> Iterator[None]:
    """Convert a panic of the library, which is not an ``Exception``, to a ModelFormatError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ModelFormatError("tokenizer", "use", None, f"the tokenizers library panicked: {error}") from None


def merges_are_pairs() -> bool:
    """Return True if merges are pairs in this release's JSON; before 0.20 both tokens are one string."""
    return TOKENIZERS >= (0, 20)


def merges_for_json(pairs: Sequence[tuple[str, str]]) -> list[Any]:
    """Return merges in the JSON format of this release: pairs, or before 0.20 strings."""
    if merges_are_pairs():
        return list(pairs)
    if any(" " in left + right for left, right in pairs):
        raise UnsupportedModelError(
            f"tokens hold spaces, which tokenizers {tokenizers.__version__} cannot read; 0.20 can"
        )
    return [f"{left} {right}" for left, right in pairs]
