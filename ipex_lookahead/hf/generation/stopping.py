"""The caller's stop criteria: how they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation import stopping_criteria as hf

from ipex_lookahead.decoding.sampling import Ids, Logits
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.generation.processors import with_padding
from ipex_lookahead.runtime.stop_texts import Stop

_BY_ROW = "MaxLengthCriteria MaxTimeCriteria EosTokenCriteria StopStringCriteria".split()


def by_row(criterion: Any) -> bool:
    """Whether a caller's criterion need not see a batch whole: one of Hugging Face's own, which keep no state."""
    return any(type(criterion) is getattr(hf, name, None) for name in _BY_ROW)


def row_criteria(criteria: Sequence[Any], padding: Ids, scores: list[Logits] | None) -> Stop:
    """Return the caller's stop criteria of one sequence as one.

    Args:
        criteria: each is called with the tokens so far, int64 [1, n], padding included, and the scores.
        padding: int64 [k], the columns on the left of the prompt in the caller's batch.
        scores: the processed logits of each position so far, or None.
    """

    def ends(prefix: Ids) -> bool:
        ids = with_padding(padding, prefix)
        shown = tuple(torch.from_numpy(row)[None] for row in scores) if scores else None
        answers = [bool(torch.as_tensor(criterion(ids, shown)).all()) for criterion in criteria]
        return any(answers)

    return ends


def cancellation(
    cancel: Any,
    in_prompt: Sequence[Any],
    ids: torch.Tensor,
    reading: Callable[[], bool],
    in_time: Stop | None = None,
) -> Callable[[], bool] | None:
    """Return the function that is called between chunks of the prompts and after each step; None: nothing ends it.

    Args:
        cancel: a ``threading.Event``, a function without arguments, or None.
        in_prompt: criteria that are also called while the prompts are read.
        ids: the prompts, their argument.
        reading: returns True while the prompts are being read.
        in_time: ``max_time`` of the settings, which also ends the reading of prompts.

    Raises:
        InputError: ``cancel`` is something else.
    """
    is_set = getattr(cancel, "is_set", cancel)
    if cancel is not None and not callable(is_set):
        raise InputError(f"cancel is {cancel!r}; pass a threading.Event, or a function that returns True to end it")
    if cancel is None and not in_prompt and in_time is None:
        return None

    def cancelled() -> bool:
        if cancel is not None and is_set():
            return True
        if not reading():
            return False
        if in_time is not None and in_time(ids[0].numpy()):
            return True
        return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in in_prompt)

    return cancelled
