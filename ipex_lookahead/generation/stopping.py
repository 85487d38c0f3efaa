"""Hugging Face's stop criteria: how they are asked, and stop strings, asked only where the answer can be yes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation import stopping_criteria as hf

from ipex_lookahead.decoding.choose import Ids, Logits
from ipex_lookahead.errors import InputError
from ipex_lookahead.generation.processors import with_padding
from ipex_lookahead.system.compat import StopStringCriteria

_BY_ROW = "MaxLengthCriteria MaxTimeCriteria EosTokenCriteria StopStringCriteria".split()


def by_row(criterion: Any) -> bool:
    """Whether a caller's criterion need not see a batch whole: one of Hugging Face's own, which keep no state."""
    return any(type(criterion) is getattr(hf, name, None) for name in _BY_ROW)


class Criteria:
    """Stop criteria of one sequence, asked after each token.

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
        """Whether any of them ends the sequence; all are asked."""
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
    """What :func:`ipex_lookahead.generation.run.run` asks between pieces of the prompts and after each step.

    Args:
        cancel: a ``threading.Event``, or anything that is called without arguments; None.
        in_prompt: criteria that are asked while the prompts are read too.
        ids: the prompts, which they see.
        reading: whether the prompts are still being read.

    Raises:
        InputError: ``cancel`` is something else.
    """
    asked = getattr(cancel, "is_set", cancel)
    if cancel is not None and not callable(asked):
        raise InputError(f"cancel is {cancel!r}; pass a threading.Event, or a function that returns True to end it")
    if cancel is None and not in_prompt:
        return None

    def cancelled() -> bool:
        if cancel is not None and asked():
            return True
        return reading() and any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in in_prompt)

    return cancelled


class StopStrings:
    """Ends a sequence of one whose last token completes one of the strings.

    transformers decides, in half a millisecond of small tensor operations a token. Its first condition is that a stop
    string's end overlaps the last token's beginning; the tokens for which that holds are few and are looked up once.

    Args:
        tokenizer: the model's.
        stop_strings: one text or several.

    Raises:
        ValueError: as transformers' criterion does, for strings that no token can end.
    """

    def __init__(self, tokenizer: Any, stop_strings: str | list[str]) -> None:
        self._criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)
        self._last_tokens = _last_tokens(self._criterion)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """``input_ids`` int64 [1, n] -> whether the sequence ends."""
        if self._last_tokens is not None and int(input_ids[0, -1]) not in self._last_tokens:
            return False
        return self._criterion(input_ids, scores, **kwargs)


def _last_tokens(criterion: Any) -> frozenset[int] | None:
    """The tokens that may complete a stop string; None where this version of transformers does not tell.

    For each token ``embedding_vec`` holds positions inside the strings, then overlaps with their ends, then its length.
    """
    table, positions = getattr(criterion, "embedding_vec", None), getattr(criterion, "max_valid_positions", None)
    strings = getattr(criterion, "num_stop_strings", None)
    if not isinstance(table, torch.Tensor) or positions is None or strings is None:
        return None
    overlaps = table[:, positions * strings : -1]
    return frozenset((overlaps > 0).any(1).nonzero().flatten().tolist())
