"""The tokens that a head may draft: the first ones of the vocabulary, or the most frequent ones, read from a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ipex_lookahead.config import DRAFT_VOCAB
from ipex_lookahead.errors import InputError, ModelFormatError, SaveError
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.files.temporary import temporary_file

Ids = npt.NDArray[np.int32]
_KEY, _SIZE = "draft_vocab", "vocab_size"
_MAX_BYTES = 64 << 20


def first_ids(vocab: int, draft_vocab: int = DRAFT_VOCAB) -> Ids:
    """Return the first ``draft_vocab`` token ids, int32 (0: all); tokenizers number frequent merges first."""
    return np.arange(min(vocab, draft_vocab or vocab), dtype=np.int32)


def frequent_ids(counts: npt.NDArray[np.int64], size: int) -> Ids:
    """Return the ``size`` most frequent tokens, int32, ascending; ties and unseen tokens go by id.

    Args:
        counts: int64 [vocab], number of occurrences of each token.
        size: 1 to ``len(counts)``; larger values return all.
    """
    order = np.lexsort((np.arange(len(counts)), -counts))
    return np.sort(order[:size]).astype(np.int32)


def write_ids(file: Path, ids: Ids, vocab: int) -> None:
    """Write a file for :func:`read_ids`; raise SaveError on failure."""
    try:
        with temporary_file(file) as made:
            made.write_text(json.dumps({_SIZE: vocab, _KEY: ids.tolist()}), encoding="utf-8")
            made.replace(file)
    except OSError as error:
        raise SaveError(f"{file} cannot be written: {error}") from error


def read_ids(file: Path, vocab: int) -> Ids:
    """Return the token ids of a file, int32, ascending.

    Raises:
        ModelFormatError: if the file is invalid.
        InputError: if it was made for a vocabulary of another size.
    """
    found = load_object(file, _MAX_BYTES)
    ids, size = found.get(_KEY), found.get(_SIZE)
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids) or type(size) is not int:
        raise ModelFormatError(file, _KEY, None, f"is missing or not a list of token ids, or {_SIZE} is missing")
    if size != vocab:
        raise InputError(
            f"{file}: was made for a vocabulary of {size} tokens, but the model has {vocab}",
            hint="make one for this model: ipex-lookahead drafter cut MODEL --text FILE --output FILE",
        )
    made = np.unique(np.array(ids, np.int64))
    if made[0] < 0 or made[-1] >= vocab:
        wrong = made[0] if made[0] < 0 else made[-1]
        raise ModelFormatError(file, _KEY, None, f"has the token id {wrong}; ids are from 0 to {vocab - 1}")
    return made.astype(np.int32)


def ids_of(draft_vocab: int | Path | None, vocab: int) -> Ids:
    """Return the draft tokens for a count, a file, or None (the default count). Raises as :func:`read_ids`."""
    if isinstance(draft_vocab, Path):
        return read_ids(draft_vocab, vocab)
    return first_ids(vocab, DRAFT_VOCAB if draft_vocab is None else draft_vocab)
