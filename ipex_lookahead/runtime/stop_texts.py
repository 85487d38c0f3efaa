"""Stop criteria of an answer in addition to its end tokens: texts, and a time limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from ipex_lookahead.decoding.sampling import Ids
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_json import has_surrogate
from ipex_lookahead.tokenization.detokenizer import Detokenizer
from ipex_lookahead.tokenization.stop_matcher import StopMatcher

Stop = Callable[[Ids], bool]
"""Called after each token with the sequence so far, int64 [n]; True ends it there."""


def any_of(*stops: Stop | None) -> Stop | None:
    """Return stop criteria as one, which calls all of them, since they may have state; None where there are none."""
    criteria = [one for one in stops if one is not None]
    if len(criteria) < 2:
        return criteria[0] if criteria else None
    return lambda ids: any([one(ids) for one in criteria])  # noqa: C419


def time_limit(seconds: float) -> Stop:
    """Return a criterion that ends an answer ``seconds`` from now; checked after each token, as in transformers."""
    end = perf_counter() + seconds
    return lambda ids: perf_counter() > end


class StopTexts:
    """Ends one sequence at the token that completes one of several texts.

    Args:
        tokenizer: the model's tokenizer; only its ``decode`` is called.
        texts: one or several, none of them empty.
        free: length, prompt included, up to which the sequence does not end.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str], free: int = 0) -> None:
        if not all(texts):
            raise InputError("a stop text must have at least one character")
        if has_surrogate(list(texts)):
            raise InputError("a stop text must be valid Unicode, but has a lone surrogate")
        self._matcher = StopMatcher(texts)
        self._detokenizer = Detokenizer(tokenizer, silent=frozenset())
        self._seen = -1
        self._free = free
        # A token has at least one byte; four more for a character that the cut goes through.
        self._tail = max(len(text.encode()) for text in texts) + 4

    def __call__(self, ids: Ids) -> bool:
        """See :data:`Stop`; called after each token, in order. A text may begin before the first of these tokens."""
        if self._seen < 0:
            for token in ids[-self._tail : -1].tolist():
                self._matcher.pass_over(self._detokenizer.put(token))
            self._seen = len(ids) - 1
        ended = False
        for at, token in enumerate(ids[self._seen :].tolist(), self._seen):
            text = self._detokenizer.put(token)
            if at < self._free:
                self._matcher.pass_over(text)
            else:
                ended = self._matcher.put(text) is not None or ended
        self._seen = len(ids)
        return ended
