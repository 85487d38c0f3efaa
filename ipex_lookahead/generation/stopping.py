"""Stop strings: transformers' own criterion, asked only where its answer can be yes."""

from __future__ import annotations

from typing import Any

import torch

from ipex_lookahead.compat import StopStringCriteria


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
