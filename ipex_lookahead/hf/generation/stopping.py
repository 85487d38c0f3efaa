"""Hugging Face's stop criteria: how they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation import stopping_criteria as hf

from ipex_lookahead.decoding.sampling import Ids, Logits
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.generation.processors import with_padding

_BY_ROW = "MaxLengthCriteria MaxTimeCriteria EosTokenCriteria StopStringCriteria".split()


def by_row(criterion: Any) -> bool:
    """Whether a caller's criterion need not see a batch whole: one of Hugging Face's own, which keep no state."""
    return any(type(criterion) is getattr(hf, name, None) for name in _BY_ROW)


class Criteria:
    """Stop criteria of one sequence, called after each token.

    Args:
        criteria: those that see the sequence without padding.
        own: the caller's, which see the padding too.
        padding: int64 [k], what stands on the left of the prompt in the caller's batch.
        scores: the processed logits of each position so far, or None.
    """

    def __init__(self, criteria: Sequence[Any], own: Sequence[Any], padding: Ids, scores: list[Logits] | None) -> None:
        self._criteria = [(criterion, False) for criterion in criteria] + [(c, len(padding) > 0) for c in own]
        self._padding = padding
        self._scores = scores

    def __call__(self, prefix: Ids) -> bool:
        """Whether any of them ends the sequence; all are called."""
        ids = torch.from_numpy(prefix)[None]
        scores = tuple(torch.from_numpy(s)[None] for s in self._scores) if self._scores else None
        ended = False
        for criterion, padded in self._criteria:
            answer = criterion(with_padding(self._padding, prefix) if padded else ids, scores)
            ended = bool(torch.as_tensor(answer).all()) or ended
        return ended


def cancellation(
    cancel: Any, in_prompt: Sequence[Any], ids: torch.Tensor, reading: Callable[[], bool]
) -> Callable[[], bool] | None:
    """What :func:`ipex_lookahead.runtime.run.run` calls between pieces of the prompts and after each step.

    Args:
        cancel: a ``threading.Event``, or anything that is called without arguments; None.
        in_prompt: criteria that are called while the prompts are read too.
        ids: the prompts, which they see.
        reading: whether the prompts are still being read.

    Raises:
        InputError: ``cancel`` is something else.
    """
    is_set = getattr(cancel, "is_set", cancel)
    if cancel is not None and not callable(is_set):
        raise InputError(f"cancel is {cancel!r}; pass a threading.Event, or a function that returns True to end it")
    if cancel is None and not in_prompt:
        return None

    def cancelled() -> bool:
        if cancel is not None and is_set():
            return True
        return reading() and any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in in_prompt)

    return cancelled
