"""What differs between the releases of the tokenizers library: 0.15, which ipex-llm needs, to 0.23."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tokenizers

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError

TOKENIZERS = tuple(int(part) for part in tokenizers.__version__.split(".")[:2])
"""(major, minor) of the library that is installed."""


def check_whole_words(wanted: bool) -> None:
    """Raise UnsupportedModelError where a vocabulary has words that no merge makes, and tokenizers cannot know it."""
    if wanted and TOKENIZERS < (0, 19):
        raise UnsupportedModelError(
            f"this tokenizer takes whole words first (ignore_merges), as Llama 3's does; tokenizers"
            f" {tokenizers.__version__} cannot, 0.19 can"
        )


@contextmanager
def panics_typed() -> Iterator[None]:
    """What the library's own assertions raise, which is no ``Exception``, becomes a ModelFormatError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ModelFormatError("tokenizer", "use", None, f"the tokenizers library panicked: {error}") from None


def merges_are_pairs() -> bool:
    """Whether merges are pairs in this release's JSON; before 0.20 both tokens stood in one string."""
    return TOKENIZERS >= (0, 20)


def merges_for_json(pairs: Sequence[tuple[str, str]]) -> list[Any]:
    """Merges as this release of tokenizers reads them from JSON: pairs, or before 0.20 both in one string."""
    if merges_are_pairs():
        return list(pairs)
    if any(" " in left + right for left, right in pairs):
        raise UnsupportedModelError(
            f"tokens hold spaces, which tokenizers {tokenizers.__version__} cannot read; 0.20 can"
        )
    return [f"{left} {right}" for left, right in pairs]
