"""Token ids of texts and pairs, cut to a model's length as sentence-transformers and transformers cut them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import ContextLengthError, InputError, arg
from ipex_lookahead.tokenization.layout import Layout
from ipex_lookahead.tokenization.text import TextTokenizer

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TextInput:
    """The tokens of a text.

    Attributes:
        ids: int64 [n], n >= 1, with special tokens.
        types: int64 [n], token types; None: all 0.
        first: number of leading rows that pooling omits, those of a prompt.
    """

    ids: Ids
    types: Ids | None = None
    first: int = 0

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class InputMaker:
    """Turns texts into tokens.

    Attributes:
        tokenizer: the tokenizer.
        layout: special tokens around texts.
        max_length: largest number of tokens, special ones included.
        vocab: number of rows of the model's table.
        types: whether the model has token types.
        lowercase: whether texts are lowercased first.
    """

    tokenizer: TextTokenizer
    layout: Layout
    max_length: int
    vocab: int
    types: bool = False
    lowercase: bool = False

    def text(self, text: str, *, truncate: bool) -> TextInput:
        """Return a text's tokens. Raises InputError, ContextLengthError."""
        ids = self.encoded(text)
        limit = self.max_length - self.layout.added()
        if len(ids) > limit and not truncate:
            raise too_long(len(ids) + self.layout.added(), self.max_length)
        return self._made(*self.layout.arrange(ids[: max(limit, 0)]))

    def pair(self, first: str, second: str, *, truncate: bool) -> TextInput:
        """Return the tokens of a pair. Raises InputError, ContextLengthError."""
        one, two = self.encoded(first), self.encoded(second)
        added = self.layout.added(pair=True)
        if len(one) + len(two) + added > self.max_length and not truncate:
            raise too_long(len(one) + len(two) + added, self.max_length)
        counts = longest_first(len(one), len(two), max(self.max_length - added, 0))
        return self._made(*self.layout.arrange(one[: counts[0]], two[: counts[1]]))

    def tokens(self, ids: Sequence[int], *, truncate: bool) -> TextInput:
        """Return given token ids, to which nothing is added. Raises InputError, ContextLengthError."""
        if isinstance(ids, bytes | bytearray | memoryview) or not isinstance(ids, Sequence | np.ndarray):
            raise InputError(f"a text is of type {type(ids).__name__}; it must be a string, or a list of token ids")
        found = []
        for number in ids:
            if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < self.vocab:
                raise InputError(f"token id {number!r} is not in the model's vocabulary: 0 to {self.vocab - 1}")
            found.append(int(number))
        if not found:
            raise InputError("a text of token ids is empty; give at least one id")
        if len(found) > self.max_length and not truncate:
            raise too_long(len(found), self.max_length)
        return self._made(found[: self.max_length], None)

    def prompt_rows(self, prompt: str) -> int:
        """Return the number of leading rows of a text that belong to a prompt before it."""
        ids, _ = self.layout.arrange(self.encoded(prompt))
        return len(ids) - int(bool(ids) and ids[-1] in self.tokenizer.silent_ids)

    def encoded(self, text: Any) -> list[int]:
        """Return the ids of a text without special tokens. Raises InputError."""
        if not isinstance(text, str):
            raise InputError(f"a text is of type {type(text).__name__}; it must be a string, or a list of token ids")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError("a text has half of a surrogate pair, not a character") from None
        return self.tokenizer.encode(text.lower() if self.lowercase else text, add_special_tokens=False)

    def _made(self, ids: list[int], types: list[int] | None) -> TextInput:
        if not ids:
            raise InputError(
                "a text has no tokens, and the model adds none to an empty text", hint="give a text with a character"
            )
        # An added token may have an id beyond the table.
        if (largest := max(ids)) >= self.vocab:
            raise InputError(f"a text has the token {largest}; the model's table has {self.vocab} rows")
        given = None if types is None or not self.types else np.array(types, np.int64)
        return TextInput(np.array(ids, np.int64), given)


def longest_first(one: int, two: int, limit: int) -> tuple[int, int]:
    """Return the lengths of a pair's texts cut to ``limit`` tokens, as ``longest_first`` of transformers."""
    if one + two <= limit:
        return one, two
    short, long = min(one, two), max(one, two)
    long = short if short > limit else max(short, limit - short)
    if short + long > limit:
        short = limit // 2
        long = short + limit % 2
    return (short, long) if one <= two else (long, short)


def too_long(tokens: int, limit: int) -> ContextLengthError:
    """Return the error of a text that must not be cut."""
    return ContextLengthError(
        f"a text has {tokens} tokens; the model reads at most {limit}",
        tokens=tokens,
        limit=limit,
        hint=f"shorten the text, or allow it to be cut with {arg('truncate', True)}",
    )


def groups(inputs: Sequence[TextInput], rows: int, texts: int | None = None) -> Iterator[list[TextInput]]:
    """Yield consecutive inputs of up to ``rows`` rows, and up to ``texts`` inputs; a longer input is alone."""
    group: list[TextInput] = []
    used = 0
    for one in inputs:
        if group and (used + len(one) > rows or len(group) == texts):
            yield group
            group, used = [], 0
        group.append(one)
        used += len(one)
    if group:
        yield group
