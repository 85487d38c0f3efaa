"""How likely the model finds tokens: its own logits, as natural logarithms of probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipex_lookahead.decoding.events import TokenLogprob
from ipex_lookahead.decoding.sampling import Logits
from ipex_lookahead.errors import InputError

MOST_LOGPROBS = 64


def logprob_of(token: int, logits: Logits, top: int) -> TokenLogprob:
    """The natural logarithms of a token's probability, and of the ``top`` most likely ones'; logits float32 [vocab]."""
    highest = logits.max()
    total = float(highest) + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))
    best: list[int] = []
    if top:
        least = np.partition(logits, -min(top, len(logits)))[-min(top, len(logits))]
        near = np.flatnonzero(logits >= least)
        best = near[np.argsort(-logits[near], kind="stable")][:top].tolist()
    return TokenLogprob(token, float(logits[token]) - total, tuple((id, float(logits[id]) - total) for id in best))


def checked_top(name: str, top: int | None) -> None:
    """Raise InputError for a number of other tokens that is not 0 to 64."""
    if top is not None and not 0 <= top <= MOST_LOGPROBS:
        raise InputError(argument=name, got=top, allowed=f"from 0 to {MOST_LOGPROBS}")


def note_prompt_logprobs(
    found: list[TokenLogprob | None], prompt: Sequence[int], top: int, before: int, logits: Logits
) -> None:
    """Store the log probabilities of some of a prompt's tokens.

    Args:
        found: one element per token of the prompt, changed; the first stays None, since no logits precede it.
        prompt: token ids.
        top: number of most likely tokens to report at each position.
        before: position of the first row.
        logits: float32 [rows, vocab_size], of the prompt's rows from ``before`` on.
    """
    for at, row in enumerate(logits, before + 1):
        if at < len(prompt):
            found[at] = logprob_of(int(prompt[at]), row, top)
