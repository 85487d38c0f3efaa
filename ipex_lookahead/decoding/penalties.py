"""Logits processors on numpy arrays: penalties for repeated tokens, and a minimum length.

The result of a processor depends only on the tokens so far and on the logits after them, so a draft model may call it
with any prefix. It changes the logits in place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ipex_lookahead.decoding.sampling import Ids, Logits, Processor


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Tokens of the prompt and of the answer become less likely, by a factor.

    Logits from 0 on are divided by ``penalty``, those below multiplied. Paper: CTRL, arXiv 1909.05858; the same bits as
    Hugging Face's.
    """

    penalty: float

    def __call__(self, ids: Ids, logits: Logits) -> Logits:
        """See :data:`~ipex_lookahead.decoding.sampling.Processor`."""
        seen = ids[ids < logits.size]
        values, penalty = logits[seen], np.float32(self.penalty)
        with np.errstate(over="ignore"):
            logits[seen] = np.where(values < 0, values * penalty, values / penalty)
        return logits


@dataclass(frozen=True, slots=True)
class CountPenalties:
    """Tokens of the answer become less likely, by a difference; those of the prompt do not.

    OpenAI's definition: ``logit - count * frequency - (count > 0) * presence``.

    Args:
        presence, frequency: what a token loses once, and each time.
        prompt_length: how many of the ids are the prompt.
    """

    presence: float
    frequency: float
    prompt_length: int

    def __call__(self, ids: Ids, logits: Logits) -> Logits:
        """See :data:`~ipex_lookahead.decoding.sampling.Processor`."""
        tokens, counts = np.unique(ids[self.prompt_length :], return_counts=True)
        logits[tokens] -= (counts * self.frequency + self.presence).astype(np.float32)
        return logits


def count_penalties(presence: float, frequency: float, prompt_length: int) -> list[Processor]:
    """Return the penalties that Hugging Face does not have; an empty list if both are 0."""
    return [CountPenalties(presence, frequency, prompt_length)] if presence or frequency else []


@dataclass(frozen=True, slots=True)
class NoRepeatedNGrams:
    """No run of ``size`` tokens comes twice, the prompt's counted; as Hugging Face's ``no_repeat_ngram_size``."""

    size: int

    def __call__(self, ids: Ids, logits: Logits) -> Logits:
        """See :data:`~ipex_lookahead.decoding.sampling.Processor`."""
        before = self.size - 1
        if len(ids) < self.size:
            return logits
        same = np.ones(len(ids) - before, np.bool_)
        for back in range(before):
            same &= ids[back : len(ids) - before + back] == ids[len(ids) - before + back]
        logits[ids[before:][same]] = -np.inf
        return logits


NEVER = 1 << 62
"""A length that no sequence reaches."""


@dataclass(frozen=True, slots=True)
class LeastLength:
    """No token of ``end`` before there are ``length`` tokens, the prompt's counted; none at all with ``NEVER``."""

    length: int
    end: Collection[int]

    def __call__(self, ids: Ids, logits: Logits) -> Logits:
        """See :data:`~ipex_lookahead.decoding.sampling.Processor`."""
        if len(ids) < self.length:
            logits[list(self.end)] = -np.inf
        return logits


Penalty = RepetitionPenalty | CountPenalties | NoRepeatedNGrams | LeastLength
PENALTIES = (RepetitionPenalty, CountPenalties, NoRepeatedNGrams, LeastLength)
